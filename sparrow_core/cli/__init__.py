"""The command `sparrow`: standalone clusters."""

from sparrow_core.cli.app import main

__all__ = ["main"]
