"""What went wrong with a ticket, in words."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gramary.errors import FetchTimeoutError, RowFetchError
from gramary.native.ring import Failure
from gramary.offload.lanes.lane import Claim

# The largest number that the kernel returns as an error.
MAX_ERRNO = 4095

REMEDY = "Its requests' windows hold NaN from this batch on: restart them."


def failed_answer(
    ticket: Claim | str,
    table_index: int,
    answer: tuple[int, Failure, int, int, int],
    files: Sequence[str],
) -> RowFetchError:
    """Returns the error of an answered request that has no rows."""
    number, failure, errno, index, offset = answer
    file = files[index] if 0 <= index < len(files) else ""
    if failure is Failure.UNKNOWN:
        what = "its answer is none that a service writes: something overwrote the shared memory"
    elif failure in (Failure.READ, Failure.CHECKSUM):
        # The words are anybody's.
        errno = errno if errno <= MAX_ERRNO else 0
        why = os.strerror(errno) if errno else "short read"
        if failure is Failure.CHECKSUM:
            why = "the block's checksum differs; run `gramary verify`"
        what = f"reading {file or 'a file'} at byte {offset} failed: {why} (errno {errno})"
    elif failure is Failure.NONE:
        what = f"its slot holds the answer to request {number}"
    elif failure is Failure.INPUTS:
        what = "its inputs do not fit the slots: something overwrote the shared memory"
    else:
        named = "token" if failure is Failure.TOKEN else "row id"
        what = f"{named} {offset} of the batch is out of range"
    return RowFetchError(
        f"{ticket}, table {table_index}: {what}. {REMEDY}", file=file, offset=offset, errno=errno
    )


def timed_out(
    ticket: Claim | str, table_index: int, timeout_s: float, why_dead: str | None
) -> FetchTimeoutError:
    """Returns the error of a request that was given up."""
    what = why_dead or no_answer(timeout_s)
    return FetchTimeoutError(f"{ticket}, table {table_index}: {what}. {REMEDY}")


def no_answer(timeout_s: float) -> str:
    """Returns why a request is given up whose service lives, in words."""
    return f"no answer within {timeout_s:g} s (GRAMARY_REQUEST_TIMEOUT_S)"


__all__ = ["failed_answer", "no_answer", "timed_out"]
