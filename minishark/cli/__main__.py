"""`python -m minishark.cli` is the `minishark` command."""

from minishark.cli.app import main

main()
