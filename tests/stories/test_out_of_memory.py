"""No room for the rows: opening says so with the numbers, leaves nothing behind, and disk works."""

import os
from collections.abc import Callable

import pytest
import torch
from children import run_apart
from small_engine import TINY
from stories.oracle import Oracle

from gramary import HashSpec, Settings, Table
from gramary.errors import CapacityError
from gramary.integrations.transformers import load
from gramary.model.codecs import Codec

# Half of what the rows need.
SMALL = Settings(memory_limit_bytes=4 << 20)


@pytest.mark.behaviour(6, 8)
def test_a_model_that_does_not_fit_is_refused_and_then_served_from_disk(
    device: str, oracle: Callable[..., Oracle], prompts: list[list[int]]
) -> None:
    """Behaviours 6 and 8: refused with the numbers before anything is taken."""
    # A device's own descriptors are there before any is counted.
    torch.zeros(1, device=device)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CapacityError, match=r"needs 7,188,480 bytes.*4,194,304 free") as caught:
        Table.open(TINY, placement="host", device=device, settings=SMALL)
    assert "disk" in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    prompt = prompts[1]
    options = {"settings": SMALL, "device_map": device}
    with load(TINY, placement="host=auto,disk", **options) as model:
        tiers = {extent.tier: extent.num_rows for extent in model.tables[0].placement.extents}
        assert 0 < tiers["host"] < tiers["host"] + tiers["disk"] == model.tables[0].spec.num_rows
        ids = torch.tensor([prompt], device=device)
        words = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "do_sample": False}
        written = model.generate(ids, **words)[0, len(prompt) :].tolist()
    assert written == oracle(device, torch.bfloat16).continue_greedily(prompt, 6)


STARVED = """
import os, resource, sys
import torch
from gramary import Settings, Table
from gramary.errors import CapacityError

def describe(): return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

settings = Settings(num_threads=1)
row_ids = torch.arange(50)
with Table.open(sys.argv[1], placement="disk", settings=settings) as table:
    rows = table.lookup(row_ids)
before = describe()
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
# The machine says that there is room, and then refuses it.
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 20), resource.RLIM_INFINITY))
try:
    Table.open(sys.argv[1], placement="host", settings=settings)
except CapacityError as error:
    assert "the machine refused 7,188,480 bytes" in str(error), error
else:
    raise SystemExit("opened without memory")
finally:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert describe() == before
with Table.open(sys.argv[1], placement="host", settings=settings) as table:
    assert torch.equal(table.lookup(row_ids), rows)
"""


def test_memory_that_is_refused_while_opening() -> None:
    """No descriptor, thread or page is left, and the same process opens it when there is room."""
    done = run_apart(STARVED, TINY)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_a_gpu_without_room_is_refused_and_the_rows_go_elsewhere() -> None:
    # The published geometry in float32: 205 GB.
    spec = HashSpec(248320, 248044, 3, 8, 160, 20_000_000, 128, decoder_layer=1)
    with pytest.raises(CapacityError, match=r"device.*204,800,983,040"):
        Table.empty(spec, Codec("fp32", 160, None), placement="device").materialize()
    free = torch.cuda.mem_get_info()[0]
    with Table.open(TINY, placement="device=auto,host", kv_bytes=free) as table:
        tiers = {extent.tier: extent.num_rows for extent in table.placement.extents}
        assert tiers.get("device", 0) == 0
        assert tiers["host"] == table.spec.num_rows
        row_ids = torch.arange(50, device=table.device)
        with Table.open(TINY, placement="disk", device=table.device) as other:
            assert torch.equal(table.lookup(row_ids), other.lookup(row_ids))
