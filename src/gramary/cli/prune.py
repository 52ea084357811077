"""`gramary prune`: frees memory of shared rows that no process uses."""

from __future__ import annotations

from typing import Annotated

import typer

from gramary.cli.output import say, shown
from gramary.cli.signals import importing


def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing, only list.")] = False,
) -> None:
    """List shared rows and remove those that no process uses."""
    with importing():
        from gramary.placement.grammar import format_bytes
        from gramary.settings import Settings
        from gramary.tiers.share_folder import ShareFolder

    with ShareFolder(Settings.from_env().share_folder) as folder:
        for file in folder.files():
            if file.is_used:
                state = "in use" if file.is_complete else "being filled"
                size = f"{format_bytes(file.num_bytes):>12}"
                say(f"kept     {size}  {shown(file.file_name)}: {state}")
        unused = folder.prune(dry_run=dry_run)
    verb = "unused " if dry_run else "removed"
    for file in unused:
        what = "" if file.is_complete else ": left by a process that ended while filling it"
        say(f"{verb}  {format_bytes(file.num_bytes):>12}  {shown(file.file_name)}{what}")
    freed = format_bytes(sum(file.num_bytes for file in unused))
    say(f"{freed} {'can be freed' if dry_run else 'freed'} in {shown(folder.path)}")
