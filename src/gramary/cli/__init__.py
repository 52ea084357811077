"""The `gramary` command; one file a subcommand."""

from gramary.cli.app import main

__all__ = ["main"]
