"""`gramary prune`: frees memory of shared rows that no process uses."""

from __future__ import annotations

from typing import Annotated

import typer


def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Remove nothing, only list.")] = False,
) -> None:
    """List shared rows and remove those that no process uses."""
    from gramary.placement_grammar import format_bytes
    from gramary.settings import Settings
    from gramary.tiers.share_folder import ShareFolder

    with ShareFolder(Settings.from_env().share_folder) as folder:
        for file in folder.files():
            if file.is_used:
                state = "in use" if file.is_complete else "being filled"
                typer.echo(
                    f"kept     {format_bytes(file.num_bytes):>12}  {file.file_name}: {state}"
                )
        unused = folder.prune(dry_run=dry_run)
    verb = "unused " if dry_run else "removed"
    for file in unused:
        what = "" if file.is_complete else ": left by a process that ended while filling it"
        typer.echo(f"{verb}  {format_bytes(file.num_bytes):>12}  {file.file_name}{what}")
    freed = format_bytes(sum(file.num_bytes for file in unused))
    typer.echo(f"{freed} {'can be freed' if dry_run else 'freed'} in {folder.path}")
