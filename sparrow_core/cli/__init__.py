"""The command `sparrow`: a cluster that stands alone, without an embedding program."""

from sparrow_core.cli.app import main

__all__ = ["main"]
