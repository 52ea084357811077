"""The `gramary` command; one file a subcommand."""

from gramary.cli.entry import main

__all__ = ["main"]
