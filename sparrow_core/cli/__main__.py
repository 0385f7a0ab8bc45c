"""`python -m sparrow_core.cli`."""

from sparrow_core.cli import main

main()
