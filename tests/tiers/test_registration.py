"""Registering host memory in pieces, with a scripted CUDA."""

import gc
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramary.errors import UnsupportedError
from gramary.settings import GIB
from gramary.tiers.registration import WAYS, Registration, cut_pieces


class ScriptedRegistry:
    """Registers ranges up to a size and a total, and remembers every call."""

    def __init__(self, largest: int = 1 << 62, total: int = 1 << 62) -> None:
        self.largest, self.total = largest, total
        self.registered: dict[int, int] = {}
        self.calls: list[tuple[str, int]] = []

    def register(self, address: int, num_bytes: int) -> None:
        if num_bytes > self.largest or num_bytes + sum(self.registered.values()) > self.total:
            raise OSError("cudaHostRegister gave cudaErrorMemoryAllocation")
        assert address not in self.registered
        self.registered[address] = num_bytes
        self.calls.append(("register", address))

    def unregister(self, address: int) -> None:
        del self.registered[address]
        self.calls.append(("unregister", address))

    def device_address(self, address: int) -> int:
        return address + (1 << 50)


@given(
    num_bytes=st.integers(1, 10_000),
    row_bytes=st.integers(1, 40),
    page_bytes=st.sampled_from([1, 16, 64]),
    largest=st.integers(1, 12_000),
)
def test_pieces_partition_the_range_on_rows_and_pages(
    num_bytes: int, row_bytes: int, page_bytes: int, largest: int
) -> None:
    pieces = list(cut_pieces(1 << 20, num_bytes, row_bytes, page_bytes, largest))
    assert pieces[0].address == 1 << 20
    for left, right in itertools.pairwise(pieces):
        assert left.address + left.num_bytes == right.address
        assert (right.address - (1 << 20)) % math.lcm(row_bytes, page_bytes) == 0
    assert sum(piece.num_bytes for piece in pieces) == num_bytes
    assert all(p.num_bytes <= max(largest, math.lcm(row_bytes, page_bytes)) for p in pieces)


@pytest.mark.behaviour(7)
def test_one_piece_where_the_driver_takes_it() -> None:
    registry = ScriptedRegistry()
    registration = Registration(1 << 30, 10 * GIB, 160, 4096, registry)
    assert registry.registered == {1 << 30: 10 * GIB}
    assert registration.way == "registered in one piece of 10.0 GiB"
    assert registration.device_address == (1 << 30) + (1 << 50)
    registration.close()
    registration.close()
    assert registry.registered == {}


@pytest.mark.behaviour(7)
@pytest.mark.parametrize("row_bytes", [160, 90, 320])
def test_smaller_pieces_where_one_is_refused(row_bytes: int) -> None:
    """Behaviour 7: pieces end on rows, and it says which way won and which was refused."""
    registry = ScriptedRegistry(largest=4 * GIB)
    registration = Registration(1 << 30, 10 * GIB, row_bytes, 4096, registry)
    assert sum(registry.registered.values()) == 10 * GIB
    assert all((address - (1 << 30)) % row_bytes == 0 for address in registry.registered)
    assert "in one piece of 10.0 GiB: cudaHostRegister gave" in registration.way
    assert registration.way.endswith("registered in 3 pieces of 4.0 GiB")


@pytest.mark.behaviour(7)
def test_failure_is_undone_in_reverse() -> None:
    """Behaviour 7: what was registered before a failure is undone in reverse; all ways are told."""
    registry = ScriptedRegistry(total=7 * GIB)
    with pytest.raises(UnsupportedError, match="ulimit -l") as error:
        Registration(1 << 30, 10 * GIB, 160, 4096, registry)
    assert registry.registered == {}
    undone = [address for call, address in registry.calls if call == "unregister"]
    taken = [address for call, address in registry.calls if call == "register"]
    first_way = len(list(cut_pieces(1 << 30, 7 * GIB, 160, 4096, WAYS[1]))) - 1
    assert undone[:first_way] == taken[:first_way][::-1]
    assert "in 3 pieces of 4.0 GiB" in str(error.value)
    assert "pieces of 256.0 MiB" in str(error.value)


@pytest.mark.behaviour(8)
def test_what_nobody_closed_is_unregistered_before_its_memory_goes() -> None:
    """Behaviour 8: an abandoned table leaves no locked page."""
    events: list[str] = []

    class Memory:
        def __del__(self) -> None:
            events.append("unmapped")

    class Noting(ScriptedRegistry):
        def unregister(self, address: int) -> None:
            events.append("unregistered")
            super().unregister(address)

    registry = Noting()
    registration = Registration(1 << 30, 4096, 16, 4096, registry, Memory())
    assert registry.registered
    del registration
    gc.collect()
    assert registry.registered == {}
    assert events == ["unregistered", "unmapped"]
