"""The GPU reader's ways, on the CPU: Triton's interpreter for kernels, scripted CUDA calls."""

import contextlib
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from table_stage import (
    encoded_table,
    expected_embedding,
    expected_rows,
    poisoned,
    random_batch,
    same_bits,
    small_spec,
    write_table_folder,
)

from gramary.errors import RowIdError, TokenError, UnsupportedError
from gramary.files.source import open_source
from gramary.flat_batch import FlatBatch
from gramary.machine.memory import HostRoom
from gramary.model.codecs import Codec
from gramary.reading import upload
from gramary.reading.cuda import CudaReader
from gramary.settings import Settings
from gramary.tiers.device import DeviceTier
from gramary.tiers.disk import DiskTier
from gramary.tiers.host import HostOptions, HostTier
from gramary.tiers.residency import Residency

# With a GPU, test_cuda.py runs.
pytestmark = pytest.mark.needs("interpreter")

SPEC = small_spec()
CPU = torch.device("cpu")
NUM_ROWS = SPEC.num_rows


class Registry:
    """CUDA calls that succeed; the device sees host memory where it is."""

    def __init__(self, _device_index: int | None = None) -> None:
        self.registered: set[int] = set()

    def register(self, address: int, _num_bytes: int) -> None:
        self.registered.add(address)

    def unregister(self, address: int) -> None:
        self.registered.remove(address)

    def device_address(self, address: int) -> int:
        return address


class Event:
    """A copy is over when it was waited for; a slot filled before that is a bug."""

    def __init__(self) -> None:
        self.is_pending = False
        self.num_waits = 0

    def record(self) -> None:
        self.is_pending = True

    def synchronize(self) -> None:
        self.num_waits += self.is_pending
        self.is_pending = False


@pytest.fixture(autouse=True)
def scripted_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the CPU stand in for a CUDA device."""
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(upload, "CudaHostRegistry", Registry)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoded, codec = encoded_table(SPEC, "fp8")
    return write_table_folder(tmp_path_factory.mktemp("fp8"), SPEC, encoded, codec)


def residency_of(
    cuts: dict[str, tuple[int, int]], encoded: torch.Tensor, codec: Codec, folder: Path,
    is_registered: bool = True,
) -> Residency:  # fmt: skip
    """Returns loaded tiers for {name: (first row, end row)}."""
    tiers: dict[str, Any] = {}
    for name, (first, end) in cuts.items():
        if name == "device":
            tiers[name] = DeviceTier(first, end - first, codec.row_bytes, CPU)
        elif name == "host":
            options = HostOptions(HostRoom(1 << 40), registry=Registry() if is_registered else None)
            tiers[name] = HostTier(first, end - first, codec.row_bytes, options=options)
        else:
            tiers[name] = DiskTier(open_source(folder).layout, first, end - first)
            continue
        tiers[name].write(first, encoded[first:end])
    return Residency(**tiers)


@contextlib.contextmanager
def reader_of(residency: Residency, codec: Codec, **settings: Any) -> Iterator[CudaReader]:
    reader = CudaReader(SPEC, codec, residency, CPU, Settings(**{"host_gather_rows": 8} | settings))
    yield reader
    reader.close()
    for tier in residency.tiers:
        tier.close()


CUTS = [
    {"device": (0, NUM_ROWS)},
    {"host": (0, NUM_ROWS)},
    {"disk": (0, NUM_ROWS)},
    {"device": (0, 400), "host": (400, NUM_ROWS)},
    {"device": (0, 400), "host": (400, 800), "disk": (800, NUM_ROWS)},
    {"host": (300, 500), "device": (500, 700)},
]


@pytest.mark.parametrize("is_registered", [True, False])
@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: "-".join(cuts))
def test_every_way_gives_the_same_rows(
    cuts: dict[str, tuple[int, int]], is_registered: bool, folder: Path
) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    held = (min(c[0] for c in cuts.values()), max(c[1] for c in cuts.values()))
    residency = residency_of(cuts, encoded, codec, folder, is_registered)
    generator = torch.Generator().manual_seed(3)
    with reader_of(residency, codec) as reader:
        for count, dtype in (
            (1, torch.bfloat16),
            (7, torch.uint8),
            (9, torch.float32),
            (40, torch.bfloat16),
        ):
            row_ids = torch.randint(-1, NUM_ROWS, (count,), generator=generator)
            expected = expected_rows(codec, encoded, row_ids, dtype, held)
            out = poisoned(tuple(expected.shape), dtype)
            # Ids on the device, then ids on the host.
            reader.lookup(row_ids, out)
            assert same_bits(out, expected)
            out = poisoned(tuple(expected.shape), dtype)
            reader._uploader.lookup(row_ids, out)
            assert same_bits(out, expected)
        batch = random_batch(SPEC, [3, 0, 2], num_padding=1)
        expected = expected_embedding(SPEC, codec, encoded, batch, None, held)
        out = poisoned(tuple(expected.shape), torch.bfloat16)
        reader.embed(FlatBatch(*batch), out)
        assert same_bits(out, expected)
        reader.check()


def test_a_batch_on_the_host_may_have_gaps(folder: Path) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    batch = random_batch(SPEC, [3, 0, 2])
    expected = expected_embedding(SPEC, codec, encoded, batch, None, (0, NUM_ROWS))
    gapped = [torch.stack((tensor, tensor), -1)[..., 0] for tensor in batch]
    residency = residency_of({"host": (0, NUM_ROWS)}, encoded, codec, folder)
    with reader_of(residency, codec) as reader:
        out = poisoned(tuple(expected.shape), torch.bfloat16)
        reader._uploader.embed(FlatBatch.checked(SPEC.history_length, *gapped), out)
        assert same_bits(out, expected)


@pytest.mark.parametrize("codec_name", ["fp32", "fp8", "nvfp4"])
def test_every_codec_passes_the_staging(codec_name: str, folder: Path, monkeypatch: Any) -> None:
    encoded, codec = encoded_table(SPEC, codec_name)
    # Slots of a few rows: a batch takes the ring around several times.
    monkeypatch.setattr(upload, "SLOT_BYTES", 4096)
    monkeypatch.setattr(upload, "NUM_SLOTS", 2)
    cuts = {"device": (0, 200), "host": (200, NUM_ROWS)}
    with reader_of(residency_of(cuts, encoded, codec, folder), codec) as reader:
        row_ids = torch.randint(-1, NUM_ROWS, (320,))
        for dtype in (codec.default_dtype, torch.uint8):
            expected = expected_rows(codec, encoded, row_ids, dtype)
            out = poisoned(tuple(expected.shape), dtype)
            reader._uploader.lookup(row_ids, out)
            assert same_bits(out, expected)
        events = reader._uploader._staging._copied
        assert all(event.num_waits > 0 for event in events)


def test_small_batches_send_ids_and_large_ones_gather(folder: Path, monkeypatch: Any) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    gathered: list[int] = []
    real = upload.native_rows.gather

    def gather(row_ids: torch.Tensor, *arguments: Any, **options: Any) -> None:
        gathered.append(row_ids.numel())
        real(row_ids, *arguments, **options)

    monkeypatch.setattr(upload.native_rows, "gather", gather)
    cuts = {"host": (0, NUM_ROWS)}
    out = torch.empty(9, SPEC.row_dim, dtype=torch.bfloat16)
    with reader_of(residency_of(cuts, encoded, codec, folder), codec) as reader:
        reader._uploader.lookup(torch.arange(7), out[:7])
        assert gathered == []
        reader._uploader.lookup(torch.arange(9), out)
        assert gathered == [9]


def test_the_crossover_is_measured_at_open(folder: Path, monkeypatch: Any) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    monkeypatch.setattr(upload, "MEASURED_ROWS", (4, 8))
    times = iter([5.0, 9.0, 10.0, 9.0])
    monkeypatch.setattr(upload, "_median_us", lambda *_: next(times))
    cuts = {"host": (0, NUM_ROWS)}
    residency = residency_of(cuts, encoded, codec, folder)
    with reader_of(residency, codec, host_gather_rows=None) as reader:
        assert reader._uploader.gather_from_rows == 8
    monkeypatch.undo()


def test_without_host_rows_nothing_is_measured_or_gathered(folder: Path, monkeypatch: Any) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    monkeypatch.setattr(upload, "_median_us", lambda *_: pytest.fail("measured"))
    residency = residency_of({"device": (0, NUM_ROWS)}, encoded, codec, folder)
    with reader_of(residency, codec, host_gather_rows=None) as reader:
        assert reader._uploader._staging is None


def test_wrong_ids_are_sticky_on_the_device_and_immediate_on_the_host(folder: Path) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    residency = residency_of({"device": (0, 300), "disk": (300, NUM_ROWS)}, encoded, codec, folder)
    with reader_of(residency, codec) as reader:
        out = poisoned((3, SPEC.row_dim), torch.bfloat16)
        row_ids = torch.tensor([0, NUM_ROWS, 500])
        reader.lookup(row_ids, out)
        assert out[1].isnan().all()
        assert same_bits(out[::2], expected_rows(codec, encoded, row_ids[::2]))
        with pytest.raises(RowIdError, match=rf"row_ids\[1\].*got {NUM_ROWS}"):
            reader.check()
        reader.check()
        with pytest.raises(RowIdError, match=rf"row_ids\[1\].*got {NUM_ROWS}"):
            reader._uploader.lookup(row_ids, out)
        starts = torch.tensor([0, 1], dtype=torch.int32)
        out = poisoned((1, SPEC.embed_dim), torch.bfloat16)
        reader.embed(FlatBatch(torch.tensor([SPEC.vocab_size]), starts), out)
        assert out.isnan().all()
        with pytest.raises(TokenError, match=str(SPEC.vocab_size)):
            reader.check()


def test_check_ids_raises_at_once(folder: Path) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    residency = residency_of({"device": (0, NUM_ROWS)}, encoded, codec, folder)
    with reader_of(residency, codec, check_ids=True) as reader:
        out = poisoned((1, SPEC.row_dim), torch.bfloat16)
        with pytest.raises(RowIdError):
            reader.lookup(torch.tensor([-5]), out)


def test_what_a_graph_cannot_capture_is_refused_by_name(folder: Path, monkeypatch: Any) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    residency = residency_of({"device": (0, 300), "disk": (300, NUM_ROWS)}, encoded, codec, folder)
    with reader_of(residency, codec) as reader:
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        out = torch.empty(1, SPEC.row_dim, dtype=torch.bfloat16)
        with pytest.raises(UnsupportedError, match=r"rows on disk .*gramary\.Connector"):
            reader.lookup(torch.tensor([1]), out)
        with pytest.raises(UnsupportedError, match=r"gramary\.Connector"):
            reader._uploader.lookup(torch.tensor([1]), out)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_closing_gives_device_rows_back_while_their_reader_is_kept(folder: Path) -> None:
    encoded, codec = encoded_table(SPEC, "fp8")
    residency = residency_of({"device": (0, NUM_ROWS)}, encoded, codec, folder)
    assert residency.device is not None
    memory = weakref.ref(residency.device.rows.untyped_storage())
    reader = CudaReader(SPEC, codec, residency, CPU, Settings())
    assert memory() is not None
    reader.close()
    residency.device.close()
    assert memory() is None
    assert reader.gather_from_rows is not None
