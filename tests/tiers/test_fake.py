"""The fake tier fails as scripted, and only then."""

import errno
import time

import pytest
import torch
from abilities import READERS

from gramary.errors import ArgumentError, RowReadError
from gramary.tiers.fake import FakeTier, Fault


def make_tier(*faults: Fault, first_row: int = 0) -> tuple[FakeTier, torch.Tensor]:
    rows = torch.arange(40 * 16, dtype=torch.int32).to(torch.uint8).view(40, 16)
    return FakeTier(first_row, rows, faults), rows


def gather(tier: FakeTier, *row_ids: int) -> torch.Tensor:
    out = torch.full((len(row_ids), 16), 0xA5, dtype=torch.uint8)
    tier.gather(torch.tensor(row_ids), out)
    return out


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("reader", READERS[:2])
def test_errors_harm_one_request_alone(reader) -> None:
    """Behaviour 32: EIO and a short read, each with file, offset and errno, then right rows."""
    rows = torch.randint(0, 256, (40, 16), dtype=torch.uint8)
    faults = [Fault(1, errno=errno.EIO), Fault(3, short_at=5)]
    tier = FakeTier(10, rows, faults, reader=reader)
    assert torch.equal(gather(tier, 12, 49), rows[[2, 39]])
    with pytest.raises(RowReadError, match="Input/output error") as caught:
        gather(tier, 30, 20)
    assert (caught.value.file, caught.value.offset) == (tier.path, 20 * 16)
    assert caught.value.errno == errno.EIO
    assert torch.equal(gather(tier, 30, 20), rows[[20, 10]])
    with pytest.raises(RowReadError, match="short read") as caught:
        gather(tier, 11)
    assert (caught.value.offset, caught.value.errno) == (11 * 16 + 5, 0)
    assert torch.equal(gather(tier, 11), rows[[1]])
    assert tier.stats()["num_failures"] == 2
    tier.close()


def test_delays_are_waited_for() -> None:
    tier, rows = make_tier(Fault(0, delay_s=0.05), Fault(2, delay_s=0.05, errno=errno.EIO))
    started = time.monotonic()
    assert torch.equal(gather(tier, 7), rows[[7]])
    assert time.monotonic() - started >= 0.05
    gather(tier, 7)
    started = time.monotonic()
    with pytest.raises(RowReadError):
        gather(tier, 7)
    assert time.monotonic() - started >= 0.05
    tier.close()


def test_wrong_scripts_are_refused() -> None:
    with pytest.raises(ArgumentError):
        Fault(-1)
    with pytest.raises(ArgumentError):
        Fault(0, errno=0)
    with pytest.raises(ArgumentError):
        Fault(0, errno=5, short_at=1)
    with pytest.raises(ArgumentError):
        make_tier()[0].write(0, torch.zeros(1, 16, dtype=torch.uint8))
