"""Kind 28: what cannot fit is refused when it is made, by comparing it with the machine."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from offload_stage import expected_rows, make_batch, make_table

from gramary import Connector, Settings, Table
from gramary.errors import ArgumentError, CapacityError, GramaryError
from gramary.layer import PLEGeometry, PLEState
from gramary.layer.module import PLELayer
from gramary.offload import RowServer
from gramary.offload.memory.ring import Ring
from gramary.offload.setup import ring_shape

CONFIG: dict[str, Any] = {
    "vocab_size": 60, "eos_token_id": 7, "hidden_size": 96, "hc_count": 4,
    "num_hidden_layers": 4, "ngram_size": 3, "heads_per_ngram": 4, "ple_embed_dim": 64,
    "ple_conv_kernel_size": 4, "ngram_vocab_size_base": 50, "ple_layer_ids": [2], "seed": 5,
    "make_ngram_vocab_size_divisible_by": 8, "rms_norm_eps": 1e-6,
}  # fmt: skip


def mapped_bytes() -> int:
    """Returns the address space of this process."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmSize:")]
    return int(line.split()[1]) * 1024


@pytest.mark.behaviour(6)
@pytest.mark.parametrize("worker", ["thread", "process"])
def test_kind_28_a_connector_larger_than_the_machine_is_refused(worker: str) -> None:
    """Behaviour 6: terabytes of slots, at once, with the numbers and nothing mapped."""
    with make_table() as table:
        needed = Ring(ring_shape([table], 1 << 24, 1 << 10)).num_bytes
        before, began = mapped_bytes(), time.monotonic()
        with pytest.raises(CapacityError, match=re.escape(f"need {needed:,} bytes, but only")):
            Connector(table, max_tokens=1 << 24, num_slots=1 << 10, worker=worker)  # type: ignore[arg-type]
        assert time.monotonic() - began < 2
        assert mapped_bytes() < before + (1 << 30)


@pytest.mark.remedy("give max_tokens or num_slots a smaller number")
def test_kind_28_the_limit_that_is_set_counts_and_a_smaller_one_fits() -> None:
    with make_table() as table:
        needed = Ring(ring_shape([table], 512, 2)).num_bytes
        few = Settings(memory_limit_bytes=needed - 1, num_threads=1)
        with pytest.raises(CapacityError, match="a smaller number, or set GRAMARY_MEMORY_LIMIT"):
            Connector(table, max_tokens=512, settings=few)
        # A limit is divided by the ranks that share the machine.
        shared = Settings(memory_limit_bytes=2 * needed - 2, local_ranks=2, num_threads=1)
        with pytest.raises(CapacityError, match="shared by 2 ranks"):
            Connector(table, max_tokens=512, settings=shared)
        enough = Settings(memory_limit_bytes=needed, num_threads=1)
        for settings, max_tokens, num_slots in ((few, 256, 2), (few, 512, 1), (enough, 512, 2)):
            with Connector(
                table, max_tokens=max_tokens, num_slots=num_slots, settings=settings
            ) as connector:
                batch = make_batch(1)
                rows = connector.wait(connector.request(batch))
                assert torch.equal(rows, expected_rows(table, batch))


@pytest.mark.needs("triton")
def test_kind_28_what_a_gpu_has_no_memory_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of the streams' slots lie on the device."""
    from gramary.offload import setup

    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 4 TiB")

    monkeypatch.setattr("gramary.offload.cuda.device.CudaDevice", refuse)
    monkeypatch.setattr("gramary.offload.cuda.streams.CudaStreams", lambda device: device)
    with make_table() as table:
        region = setup.make_region(ring_shape([table], 16, 2), table.device)
        on_gpu: Any = SimpleNamespace(device=torch.device("cuda", 0))
        nothing: Any = None
        with pytest.raises(CapacityError, match="max_tokens=16 and num_slots=2: tried"):
            setup.make_device(region, nothing, [on_gpu], Settings(), nothing)
        region.close()


@pytest.mark.remedy("give num_requests less")
@pytest.mark.parametrize("num_requests", [1 << 30, 1 << 62])
def test_kind_28_windows_larger_than_the_machine_are_refused(num_requests: int) -> None:
    geometry = PLEGeometry.from_config(CONFIG)
    layer = PLELayer(geometry)
    for make in (layer.new_state, lambda number: PLEState.fresh(geometry, number)):
        with pytest.raises(CapacityError, match=r"need [\d,]+ bytes, but only [\d,]+ may be taken"):
            make(num_requests)
        assert make(4).num_requests == 4


@pytest.mark.parametrize("num_ranks", [4097, 1 << 31, 1 << 70])
def test_kind_28_more_ranks_than_a_machine_has_are_refused(num_ranks: int) -> None:
    with pytest.raises(ArgumentError, match="num_ranks: expected an integer from 1 to 4096"):
        RowServer(num_ranks)


def test_kind_28_a_table_larger_than_the_machine_is_refused_before_and_after_its_rows() -> None:
    """As before: it is what the others are compared with."""
    with make_table() as table:
        spec, codec = table.spec, table.codec
    limit = Settings(memory_limit_bytes=spec.num_rows)
    empty = Table.empty(spec, codec, settings=limit)
    with empty, pytest.raises(GramaryError, match="bytes"):
        empty.materialize()
