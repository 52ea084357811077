"""The host tier: own memory, checked first, given back whole."""

import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gramary.errors import CapacityError, UnsupportedError
from gramary.machine.memory import HostRoom, HugePages
from gramary.native.memory import HostMapping, Pages
from gramary.settings import Settings
from gramary.tiers.host import HostOptions, HostTier

PAGE = resource.getpagesize()
HUGE = 2 << 20
MUCH = HostRoom(available_bytes=1 << 40)
NO_HUGE = HugePages(0, 0, "never", "never")
SOME_HUGE = HugePages(HUGE, 0, "madvise", "never")


class Registry:
    """Registers anything, or refuses; counts what is registered."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.registered: dict[int, int] = {}

    def register(self, address: int, num_bytes: int) -> None:
        if self.refuses:
            raise OSError("refused")
        self.registered[address] = num_bytes

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def device_address(self, address: int) -> int:
        return address


def held_resources() -> tuple[int, int, int]:
    """Returns this process's (file descriptors, memfd mappings, threads)."""
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count("memfd:gramary"), threading.active_count()


def test_rows_are_zero_until_written_and_read_back() -> None:
    tier = HostTier(100, 50, 7)
    out = torch.full((3, 7), 0xA5, dtype=torch.uint8)
    tier.gather(torch.tensor([100, 149, 120]), out)
    assert not out.any()
    rows = torch.arange(2 * 7, dtype=torch.uint8).view(2, 7)
    tier.write(148, rows)
    tier.gather(torch.tensor([149, 147, 148]), out)
    assert torch.equal(out, torch.stack([rows[1], torch.zeros_like(rows[0]), rows[0]]))
    assert (tier.end_row, tier.nbytes) == (150, 350)
    tier.close()
    tier.close()


@pytest.mark.behaviour(3)
@pytest.mark.parametrize("num_bytes", [1, PAGE - 1, PAGE, PAGE + 1, 5 * HUGE + 3])
@pytest.mark.parametrize("huge_pages", [NO_HUGE, SOME_HUGE])
def test_memory_is_the_rows_and_at_most_a_page(num_bytes: int, huge_pages: HugePages) -> None:
    """Behaviour 3: locked bytes are the rows' bytes rounded up to one page in use."""
    registry = Registry()
    options = HostOptions(MUCH, huge_pages, registry=registry)
    tier = HostTier(0, num_bytes, 1, options=options)
    assert num_bytes <= tier.locked_bytes < num_bytes + PAGE
    assert sum(registry.registered.values()) == tier.locked_bytes
    assert tier.stats()["mapped_bytes"] == tier.locked_bytes
    tier.close()
    assert registry.registered == {}


def test_huge_pages_where_they_can_be_had() -> None:
    tier = HostTier(0, 3 * HUGE + 5, 1, options=HostOptions(MUCH, SOME_HUGE))
    assert tier.stats()["huge_page_bytes"] in (0, 3 * HUGE)
    assert tier.rows.data_ptr() % HUGE == 0
    tier.rows[-1] = 9
    tier.close()
    plain = HostTier(0, 3 * HUGE, 1, Settings(huge_pages=False), HostOptions(MUCH, SOME_HUGE))
    assert plain.stats()["huge_page_bytes"] == 0
    plain.close()


def test_a_pool_that_promises_too_much_is_no_failure() -> None:
    """The reserved pool may be emptied by somebody else meanwhile."""
    options = HostOptions(MUCH, HugePages(HUGE, 64 * HUGE, "never", "never"))
    tier = HostTier(0, 2 * HUGE, 1, options=options)
    assert tier.nbytes == 2 * HUGE
    tier.close()


@pytest.mark.behaviour(6)
@pytest.mark.parametrize(
    ("room", "problem"),
    [
        (HostRoom(500), "only 500 may be taken .available memory 500 B"),
        (HostRoom(1 << 40, cgroup_bytes=600), "only 600 .*cgroup room 600 B"),
        (HostRoom(1 << 40, lock_bytes=700), "only 700 .*lock room 700 B"),
        (HostRoom(1600, local_ranks=2), "only 800 .*shared by 2 ranks"),
        (HostRoom(1 << 40, limit_bytes=900), "only 900 .*memory_limit_bytes 900 B"),
    ],
)
def test_free_memory_is_compared_before_anything_is_taken(
    room: HostRoom, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behaviour 6: free memory, the cgroup and the lock limit are compared; the numbers told."""
    monkeypatch.setattr("gramary.tiers.host.HostMapping", None)
    with pytest.raises(CapacityError, match=r"host rows need 1,000 bytes, but " + problem):
        HostTier(0, 10, 100, options=HostOptions(room, NO_HUGE, registry=Registry()))


def test_the_lock_limit_counts_only_for_locked_memory() -> None:
    room = HostRoom(1 << 40, lock_bytes=0)
    HostTier(0, 10, 100, options=HostOptions(room, NO_HUGE)).close()


@pytest.mark.behaviour(8)
def test_a_hundred_tiers_leave_nothing() -> None:
    """Behaviour 8: no descriptor, mapping, locked page or thread is left, also after failures."""
    HostTier(0, HUGE, 3).close()
    before = held_resources()
    registry = Registry()
    for _ in range(100):
        tier = HostTier(0, HUGE, 3, options=HostOptions(MUCH, SOME_HUGE, registry=registry))
        tier.write(5, torch.ones(1, 3, dtype=torch.uint8))
        tier.close()
        with pytest.raises(UnsupportedError):
            HostTier(0, 10, 3, options=HostOptions(MUCH, NO_HUGE, registry=Registry(refuses=True)))
    assert registry.registered == {}
    assert held_resources() == before


def test_a_machine_that_refuses_is_a_capacity_error() -> None:
    def make(num_bytes: int) -> Callable[[], HostTier]:
        return lambda: HostTier(0, num_bytes, 1, options=HostOptions(HostRoom(1 << 63), NO_HUGE))

    before = held_resources()
    with pytest.raises(CapacityError, match="the machine refused"):
        make(1 << 60)()
    assert held_resources() == before


def test_another_mapping_of_the_descriptor_sees_the_rows() -> None:
    """A worker process maps the same pages by the descriptor."""
    import mmap

    tier = HostTier(0, 4, 8)
    tier.write(2, torch.full((1, 8), 42, dtype=torch.uint8))
    with mmap.mmap(tier.descriptor, 32) as other:
        assert other[16:24] == bytes([42]) * 8
    tier.close()


def test_mappings_prefer_a_node_and_say_so() -> None:
    mapping = HostMapping(10, numa_node=0)
    assert mapping.on_numa_node in (True, False)
    assert not HostMapping(10, numa_node=4000).on_numa_node
    with pytest.raises(AssertionError):
        HostMapping(10, Pages.TRANSPARENT, 3)
    mapping.close()
