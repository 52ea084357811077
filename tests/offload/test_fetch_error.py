"""What is told of a request without rows: of which ticket, why, and what to do."""

import errno

import pytest

from gramary.native.ring import Failure
from gramary.offload.giving_up.fetch_error import failed_answer, timed_out

FILES = ("first.safetensors", "second.safetensors")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((7, Failure.READ, errno.EIO, 1, 4096), "reading second.safetensors at byte 4096 failed"),
        ((7, Failure.READ, errno.EIO, 1, 4096), "Input/output error (errno 5)"),
        ((7, Failure.READ, 0, 0, 12), "reading first.safetensors at byte 12 failed: short read"),
        ((7, Failure.READ, errno.EIO, -1, 0), "reading a file at byte 0 failed"),
        ((7, Failure.READ, errno.EIO, 9, 0), "reading a file at byte 0 failed"),
        ((7, Failure.CHECKSUM, 0, 0, 0), "checksum differs; run `gramary verify`"),
        ((7, Failure.TOKEN, 0, -1, 3), "token 3 of the batch is out of range"),
        ((7, Failure.ROW_ID, 0, -1, 3), "row id 3 of the batch is out of range"),
        ((5, Failure.NONE, 0, -1, 0), "its slot holds the answer to request 5"),
    ],
)
@pytest.mark.behaviour(32, 36)
def test_every_failure_has_words_of_its_own(
    answer: tuple[int, Failure, int, int, int], told: str
) -> None:
    """Behaviours 32, 36: file, offset and errno; and that the requests must be restarted."""
    error = failed_answer("the ticket", 2, answer, FILES)
    assert str(error).startswith("the ticket, table 2: ")
    assert told in str(error)
    assert str(error).endswith("restart them.")
    assert (error.errno, error.offset) == (answer[2], answer[4])
    assert error.file in ("", *FILES)


def test_a_request_given_up_tells_the_worker_s_end_or_the_time() -> None:
    assert "no answer within 0.5 s (GRAMARY_REQUEST_TIMEOUT_S)" in str(timed_out("t", 0, 0.5, None))
    assert "t, table 0: it was killed. " in str(timed_out("t", 0, 0.5, "it was killed"))
