"""The `minishark` command: a thin layer over the public API.

Rules: imports are lazy, so that `minishark --help` answers at once; results go to stdout, all else
to stderr; wrong usage ends with one plain sentence and exit status 2, a failure with status 1,
Ctrl-C with 130.
"""

from minishark.cli.app import main

__all__ = ["main"]
