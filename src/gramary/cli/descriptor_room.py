"""File descriptors that a model's tables need, against those that may be open here."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gramary.errors import GramaryError
from gramary.process.descriptor_limit import REMEDY, count_open, soft_limit, too_few
from gramary.settings import Settings
from gramary.storage.descriptor_needs import num_descriptors


def describe_room(needed: int) -> str:
    """Returns one line about the descriptors that are needed beside those that are open."""
    limit = soft_limit()
    may = "without a limit" if limit is None else f"at most {limit:,} may be open (ulimit -n)"
    return f"{needed:,} needed; {may}, {count_open() or 0:,} are open"


def is_enough(needed: int) -> bool:
    """Returns whether so many more descriptors may be opened."""
    limit = soft_limit()
    return limit is None or (count_open() or 0) + needed <= limit


def require_descriptors(needed: int) -> None:
    """Raises DescriptorLimitError where fewer descriptors may be opened than are needed."""
    if not is_enough(needed):
        raise too_few("open what was planned", errno.EMFILE, needed)


def probe_descriptors(model: Path | None, settings: Settings) -> Iterator[Any]:
    """Yields whether a model's tables could be read from disk with the descriptors there are.

    Args:
        model: its folder, or a table's file; None gives the limit alone.
        settings: `disk_reader` and `direct_io` are used.
    """
    from gramary.cli.probes import FACT, NO, YES, Finding

    section, name = "reading from disk", "file descriptors"
    needed = None if model is None else _needed_on_disk(model, settings)
    if needed is None:
        limit = soft_limit()
        text = "no limit" if limit is None else f"at most {limit:,} may be open (ulimit -n)"
        yield Finding(section, name, FACT, text)
    elif is_enough(needed):
        yield Finding(section, name, YES, describe_room(needed))
    else:
        yield Finding(section, name, NO, describe_room(needed), REMEDY)


def _needed_on_disk(model: Path, settings: Settings) -> int | None:
    """Returns the descriptors that all tables need with their rows on disk; None without tables."""
    from gramary.files.source import find_sources

    try:
        sources = find_sources(model)
    except GramaryError:
        return None
    return sum(num_descriptors(source.layout, ("disk",), settings) for source in sources)


__all__ = ["describe_room", "is_enough", "probe_descriptors", "require_descriptors"]
