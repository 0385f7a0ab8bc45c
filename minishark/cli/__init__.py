"""The `minishark` command: thin, for all that it does is done by the layers below.

Rules: nothing heavy is imported before a command runs, so that `minishark --help` answers at once;
results go to stdout, all else to stderr; a user's mistake ends with one plain sentence and exit
status 2, a failure with status 1, Ctrl-C with 130.
"""

from minishark.cli.app import main

__all__ = ["main"]
