"""The exception tree of gramary.

GramaryError
├── ArgumentError (also ValueError)   an argument of a call is wrong
│   ├── TokenError                    a token id lies outside the vocabulary
│   └── RowIdError                    a row id lies outside the table
├── SettingsError                     a setting or environment variable is out of range
├── ConfigError                       a model configuration gives no valid geometry
├── CheckpointError                   a model's files are wrong
│   ├── TableNotFoundError            no n-gram table (or not the one asked for) in them
│   ├── ShardError                    a shard is missing, doubled, truncated or misshapen
│   ├── ScaleError                    a scale is missing or misshapen
│   └── HashMismatchError             hash constants differ from the rebuilt ones
├── PackError                         a pack file is wrong
│   └── ChecksumError                 stored and computed checksums differ
├── PlacementError                    a placement cannot be honoured
│   ├── PlacementSyntaxError          it does not parse
│   └── CapacityError                 the tiers cannot hold the rows
├── LoadError                         rows were loaded twice, not at all, or out of turn
├── ClosedError                       the object was closed
├── RowReadError                      reading rows from a file failed
├── RowFetchError                     a request for rows failed
│   └── FetchTimeoutError             it was given up, or its worker died
├── SlotsBusyError                    the next result slot is taken
├── SlotError                         a window slot is used against its rules
├── DependencyError                   an optional package is needed and missing
└── UnsupportedError                  this machine or build cannot do what was asked
    └── DescriptorLimitError          too few file descriptors may be open here
"""

from __future__ import annotations

import os
from typing import Any


class GramaryError(Exception):
    """Root of every error that gramary raises for a user's mistake or a failing machine."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Some are built of more than their message; a worker process hands them on whole.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[GramaryError], arguments: tuple[Any, ...], facts: dict[str, Any]) -> Any:
    """Returns an error as it was in the process that raised it."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(facts)
    return error


class ArgumentError(GramaryError, ValueError):
    """An argument of a call is wrong; the message names it, what was expected and what came."""


class TokenError(ArgumentError):
    """A token id lies outside the vocabulary."""


class RowIdError(ArgumentError):
    """A row id lies outside the table."""


class SettingsError(GramaryError):
    """A setting or environment variable is out of range."""


class ConfigError(GramaryError):
    """A model configuration gives no valid n-gram geometry."""


class CheckpointError(GramaryError):
    """A model's files are wrong."""


class TableNotFoundError(CheckpointError):
    """A model's files hold no n-gram table, or not the one asked for."""


class ShardError(CheckpointError):
    """A shard is missing, doubled, truncated, of the wrong dtype or misshapen."""


class ScaleError(CheckpointError):
    """A scale tensor is missing or misshapen."""


class HashMismatchError(CheckpointError):
    """Hash constants in the files differ from those rebuilt from the configuration."""


class PackError(GramaryError):
    """A pack file is malformed, truncated or of a foreign version."""


class ChecksumError(PackError):
    """Stored and computed checksums differ."""


class PlacementError(GramaryError):
    """A placement cannot be honoured."""


class PlacementSyntaxError(PlacementError):
    """A placement string does not parse."""


class CapacityError(PlacementError):
    """The tiers of a placement cannot hold the rows, or memory is too short for them."""


class LoadError(GramaryError):
    """Rows were loaded twice, not at all, or out of turn."""


class ClosedError(GramaryError):
    """The object was closed."""


class RowReadError(GramaryError):
    """Reading rows from a file failed.

    Attributes:
        file: path of the file.
        offset: byte offset of the failing read.
        errno: system error number, or 0 for a short read.
    """

    def __init__(self, message: str, *, file: str, offset: int, errno: int) -> None:
        code = os.strerror(errno) if errno else "short read"
        super().__init__(f"{message}: {file} at byte {offset}: {code} (errno {errno})")
        self.file = file
        self.offset = offset
        self.errno = errno


class RowFetchError(GramaryError):
    """A request for rows failed; the named requests must be restarted.

    Attributes:
        file: path of the file whose read failed, or "".
        offset: byte offset of the failing read, or index of the wrong token or id.
        errno: system error number, or 0.
    """

    def __init__(self, message: str, *, file: str = "", offset: int = 0, errno: int = 0) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset
        self.errno = errno


class FetchTimeoutError(RowFetchError):
    """A request for rows was not answered in time, or its worker died."""


class SlotsBusyError(GramaryError):
    """The result slot whose turn it is holds a ticket; the message names it and what frees it."""


class SlotError(GramaryError):
    """A window slot is used against its rules."""


class DependencyError(GramaryError):
    """An optional package is needed and missing; the message says what to install."""


class UnsupportedError(GramaryError):
    """This machine or build cannot do what was asked."""


class DescriptorLimitError(UnsupportedError):
    """Too few file descriptors may be open here; the message has the limit and what raises it."""


def no_threads(what: str, error: Exception) -> UnsupportedError:
    """Returns the error for a thread or a process that the machine does not start.

    Args:
        what: what could not be done, in words.
        error: what the system said.
    """
    return UnsupportedError(
        f"{what}: {error}; raise the limit on processes (ulimit -u, the cgroup's pids.max)"
    )
