"""Kind 16: what the errors of tables, placements, files and packs advise, followed."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from abilities import ask_for
from offload_stage import make_spec

from gramary import Batch, Connector, HashSpec, PLELayer, Settings, Table, plan_placement
from gramary.cli import main
from gramary.errors import (
    ArgumentError,
    CapacityError,
    ClosedError,
    GramaryError,
    LoadError,
    PackError,
    PlacementError,
    RowFetchError,
    RowReadError,
    ScaleError,
    SettingsError,
    UnsupportedError,
)
from gramary.files.pack.building import build_pack
from gramary.files.pack.opening import open_pack
from gramary.files.source import open_source
from gramary.machine.memory import HostRoom, read_host_room
from gramary.model.codecs import Codec, encode_rows
from gramary.native import _core
from gramary.native.threads import require_num_threads
from gramary.ops import gate_conv, opaque
from gramary.ple.backend import backend_for

SPEC = make_spec()


def rows_of(codec: str, spec: HashSpec = SPEC) -> tuple[torch.Tensor, Codec]:
    generator = torch.Generator().manual_seed(1)
    return encode_rows(codec, torch.randn(spec.num_rows, spec.row_dim, generator=generator))


def command(*words: str) -> int:
    """Runs `gramary ...` and returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(codec="bf16")


@pytest.mark.remedy(
    "load every shard, then finish_loading()",
    "load every shard before finish_loading()",
    "load_shard: loading is over; open a new table instead",
    "each shard may be loaded once",
)
def test_kind_16_a_table_that_is_not_loaded() -> None:
    rows, codec = rows_of("bf16")
    half = -(-len(rows) // 2)
    with Table.empty(SPEC, codec, num_shards=2) as table:
        with pytest.raises(LoadError, match="load every shard, then finish_loading"):
            table.lookup(torch.tensor([0]))
        table.load_shard(0, rows[:half])
        with pytest.raises(LoadError, match="load every shard before finish_loading"):
            table.finish_loading()
        with pytest.raises(LoadError, match="each shard may be loaded once"):
            table.load_shard(0, rows[:half])
        table.load_shard(1, rows[half:])
        table.finish_loading()
        assert table.lookup(torch.tensor([0])).shape == (1, SPEC.row_dim)
        with pytest.raises(LoadError, match="open a new table instead"):
            table.load_shard(1, rows[half:])
    with Table.empty(SPEC, codec, num_shards=1) as table:
        table.load_shard(0, rows)
        table.finish_loading()


@pytest.mark.remedy("load shard 0 first, or give Table.empty num_shards")
@pytest.mark.parametrize("remedy", ["shard 0", "num_shards"])
def test_kind_16_a_shard_that_does_not_tell_its_place(remedy: str) -> None:
    rows, codec = rows_of("bf16")
    # Of 17 shards of 121 rows the sixteenth could also be the shorter last one of sixteen.
    shards = rows.split(121)
    assert len(shards) == 17
    table = Table.empty(SPEC, codec)
    with pytest.raises(LoadError, match="load shard 0 first, or give Table"):
        table.load_shard(15, shards[15])
    order = range(len(shards))
    if remedy == "num_shards":
        table.close()
        table, order = Table.empty(SPEC, codec, num_shards=len(shards)), order[::-1]
    for index in order:
        table.load_shard(index, shards[index])
    table.finish_loading()
    table.close()


@pytest.mark.remedy("pass scales=")
def test_kind_16_rows_without_their_scales() -> None:
    rows, codec = rows_of("nvfp4")
    codes, scales = rows[:, : SPEC.row_dim // 2], rows[:, SPEC.row_dim // 2 :]
    with Table.empty(SPEC, codec, num_shards=1) as table:
        with pytest.raises(ScaleError, match="pass scales="):
            table.load_shard(0, codes.contiguous())
        table.load_shard(0, codes.contiguous(), scales=scales.contiguous())
        table.finish_loading()


@pytest.mark.remedy("use Table.open, or give device or host the rest")
def test_kind_16_disk_rows_without_files(folder: Path) -> None:
    _, codec = rows_of("bf16")
    with pytest.raises(PlacementError, match="or give device or host the rest"):
        Table.empty(SPEC, codec, placement="host=1KiB,disk")
    Table.empty(SPEC, codec, placement="host").close()
    Table.open(folder, placement="host=1KiB,disk").close()


@pytest.mark.remedy("or set GRAMARY_MEMORY_LIMIT_BYTES where the machine says too little")
@pytest.mark.parametrize("remedy", ["fewer rows", "limit"])
def test_kind_16_too_little_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, remedy: str
) -> None:
    def room(settings: Settings) -> HostRoom:
        return HostRoom(available_bytes=5000, limit_bytes=settings.memory_limit_bytes)

    monkeypatch.setattr("gramary.tiers.host.read_host_room", room)
    with pytest.raises(CapacityError, match="or set GRAMARY_MEMORY_LIMIT_BYTES"):
        Table.open(folder, placement="host")
    if remedy == "limit":
        monkeypatch.setenv("GRAMARY_MEMORY_LIMIT_BYTES", str(1 << 30))
    Table.open(folder, placement="host" if remedy == "limit" else "host=4000B,disk").close()


@pytest.mark.remedy("give the host fewer rows and let disk take the rest (host=SIZE,disk)")
def test_kind_16_memory_that_the_machine_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gramary.tiers import host

    made = host.HostMapping

    def refuse(num_bytes: int, *options: object) -> object:
        if num_bytes > 4096:
            raise OSError(12, "Cannot allocate memory")
        return made(num_bytes, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(host, "HostMapping", refuse)
    with pytest.raises(CapacityError, match="let disk take the rest"):
        Table.open(folder, placement="host")
    Table.open(folder, placement="host=4000B,disk").close()


@pytest.mark.remedy("has no MemAvailable; set GRAMARY_MEMORY_LIMIT_BYTES")
def test_kind_16_a_machine_that_does_not_say_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnsupportedError, match="set GRAMARY_MEMORY_LIMIT_BYTES"):
        read_host_room(Settings.from_env(os.environ), tmp_path)
    monkeypatch.setenv("GRAMARY_MEMORY_LIMIT_BYTES", "4096")
    assert read_host_room(Settings.from_env(os.environ), tmp_path).free_bytes(locking=True) == 4096


@pytest.mark.remedy(
    "Let the last tier take the rest, for example by adding disk",
    "Give the tier fewer bytes and let disk or another tier take the rest",
    "use host or disk, or device=0",
    "unset it, or give no other size",
)
def test_kind_16_placements() -> None:
    codec = Codec("bf16", SPEC.row_dim, None)
    total = SPEC.num_rows * codec.row_bytes

    def plan(placement: str, **options: object) -> None:
        free = {"free_device": 0, "free_host": total, **options}
        plan_placement(SPEC, codec, placement, **free).require_room()  # type: ignore[arg-type]

    with pytest.raises(CapacityError, match="by adding disk"):
        plan("host=4KiB")
    plan("host=4KiB,disk")
    with pytest.raises(CapacityError, match="Give the tier fewer bytes and let disk"):
        plan("host", free_host=4096)
    plan("host=4000B,disk", free_host=4096)
    with pytest.raises(PlacementError, match="use host or disk, or device=0"):
        plan("device=4KiB,host", free_device=None)
    for placement in ("host", "disk", "device=0,host"):
        plan(placement, free_device=None)
    set_host = Settings(host_gib=1.0)
    with pytest.raises(PlacementError, match="unset it, or give no other size"):
        plan("host=4KiB,disk", settings=set_host)
    plan("device=auto,host", settings=set_host, free_device=total, device_total=total)
    plan("host=4KiB,disk", settings=Settings())


@pytest.mark.remedy(
    "open the table again",
    "run `gramary verify` and rebuild it",
    "the block's checksum differs; run `gramary verify`",
    "build the pack again",
)
def test_kind_16_files_that_changed(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "model")
    pack = tmp_path / "table.pack"
    assert command("pack", str(copy), str(pack)) == 0
    with Table.open(copy, placement="disk") as table:
        for file in copy.glob("*.safetensors"):
            os.utime(file, ns=(1, 1))
        with pytest.raises(RowReadError, match="open the table again"):
            table.check_integrity()
    with Table.open(copy, placement="disk") as table:
        table.check_integrity()
    part = open_pack(pack).layout.runs[0].parts[0]
    data = bytearray(pack.read_bytes())
    for block in range(part.offset, len(data), part.block_bytes):
        data[block + 8] ^= 1
    pack.write_bytes(data)
    with pytest.raises(GramaryError, match="run `gramary verify` and rebuild it"):
        Table.open(pack, placement="host").close()
    with Table.open(pack, placement="disk") as table, Connector(table, max_tokens=8) as connector:
        ticket = connector.request(Batch.from_prompts(table.spec, [[1, 2, 3]], [0], [3]))
        with pytest.raises(RowFetchError, match="the block's checksum differs; run `gramary ver"):
            connector.wait(ticket)
    assert command("verify", str(pack)) == 2
    pack.unlink()
    assert command("pack", str(copy), str(pack)) == 0
    assert command("verify", str(pack)) == 0
    Table.open(pack, placement="host").close()


@pytest.mark.remedy(
    "for a checkpoint, give the model's folder",
    "a safetensors file; give the model's folder",
    "it is a pack whose building did not end; run `gramary pack` again",
    "give the name of a pack",
    "remove it, or choose another name",
)
def test_kind_16_what_is_no_pack(
    make_checkpoint: Callable[..., Path],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack = tmp_path / "table.pack"
    with pytest.raises(PackError, match="a safetensors file; give the model's folder"):
        open_source(next(folder.glob("*.safetensors")))
    (tmp_path / "weights").write_bytes(b"weights!" * 512)
    with pytest.raises(PackError, match="for a checkpoint, give the model's folder"):
        open_source(tmp_path / "weights")
    open_source(folder)
    with monkeypatch.context() as patched:
        patched.setattr("gramary.files.pack.partial_file.PartialFile.publish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_pack(open_source(folder), pack)
    partial = tmp_path / "table.pack.partial"
    with pytest.raises(PackError, match="run `gramary pack` again"):
        open_source(partial)
    assert command("pack", str(folder), str(pack)) == 0
    open_source(pack)
    with pytest.raises(PackError, match="give the name of a pack"):
        open_pack(folder)
    open_pack(pack)
    with pytest.raises(PackError, match="remove it, or choose another name"):
        build_pack(open_source(make_checkpoint(codec="fp8")), pack)
    build_pack(open_source(make_checkpoint(codec="fp8")), tmp_path / "other.pack")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.remedy("give every table the same number")
def test_kind_16_two_numbers_of_threads() -> None:
    there = _core.shared_num_threads()
    with pytest.raises(SettingsError, match="give every table the same number"):
        require_num_threads(there + 1)
    require_num_threads(there)
    require_num_threads(0)


@pytest.mark.remedy("dequantise it and use load_state_dict()")
def test_kind_16_weights_of_a_dtype_that_is_no_plain_float(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from gramary.errors import CheckpointError

    copy = shutil.copytree(folder, tmp_path / "model")
    with Table.open(copy) as table:
        good = PLELayer.from_checkpoint(copy, table=table).state_dict()
        for file in copy.glob("*.safetensors"):
            tensors = load_file(file)
            for name in tensors:
                if name.endswith("key_proj.weight"):
                    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
            save_file(tensors, file, {"format": "pt"})
    with Table.open(copy) as table:
        with pytest.raises(CheckpointError, match=r"dequantise it and use load_state_dict\(\)"):
            PLELayer.from_checkpoint(copy, table=table)
        layer = PLELayer(copy, table=table)
        layer.load_state_dict(good)
        hidden = torch.zeros(2, layer.geometry.channels, dtype=layer.dtype)
        starts = torch.tensor([0, 2], dtype=torch.int32)
        assert layer(hidden, torch.tensor([1, 2]), starts).isfinite().all()


@pytest.mark.remedy("compile for an open one")
def test_kind_16_a_handle_of_a_table_that_is_gone(folder: Path) -> None:
    tokens, starts = torch.tensor([1]), torch.tensor([0, 1], dtype=torch.int32)
    arguments = (tokens, starts, None)
    with Table.open(folder) as table:
        width, dtype = table.spec.embed_dim, torch.bfloat16
        opaque.embed(table.handle, *arguments, width, dtype)
        with pytest.raises(ClosedError, match="compile for an open one"):
            opaque.embed(0, *arguments, width, dtype)


@pytest.mark.remedy("needs TRITON_INTERPRET=1 at start")
def test_kind_16_the_triton_backend_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    caps = gate_conv.Caps(
        device="cpu", mode="decode", max_tokens=1, max_seqs=1, max_state_slots=1,
        max_speculative_tokens=0, streams=1, hidden_size=8, kernel_size=2, dilation=2,
        dtype=torch.float32,
    )  # fmt: skip
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UnsupportedError, match="needs TRITON_INTERPRET=1 at start"):
        backend_for(caps, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backend_for(caps, "triton")


@pytest.fixture
def memory() -> Iterator[str]:
    ask_for("shared_memory")
    with tempfile.TemporaryDirectory(prefix="gramary-test-", dir="/dev/shm") as root:
        yield root


@pytest.mark.remedy(
    "set GRAMARY_SHARE_FOLDER to a tmpfs that this user may write to",
    "give sizes instead of auto",
    "run: chmod go=",
    "run `gramary prune`, or open the table without share",
)
def test_kind_16_shared_rows(
    folder: Path, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PlacementError, match="set GRAMARY_SHARE_FOLDER to a tmpfs"):
        Table.open(folder, share="a", settings=Settings(share_folder=str(tmp_path / "none")))
    monkeypatch.setenv("GRAMARY_SHARE_FOLDER", memory)
    with pytest.raises(PlacementError, match="give sizes instead of auto"):
        Table.open(folder, share="a", placement="host=auto,disk")
    Table.open(folder, share="a", placement="host=4000B,disk").close()
    own = Path(memory) / f"gramary-{os.geteuid()}"
    own.chmod(0o755)
    with pytest.raises(PlacementError, match="run: chmod go= ") as caught:
        Table.open(folder, share="a")
    assert os.system(str(caught.value).rpartition("run: ")[2]) == 0
    Table.open(folder, share="a").close()
    with monkeypatch.context() as patched:
        patched.setattr("gramary.tiers.share_folder.ShareFolder.free_bytes", lambda _: 0)
        with pytest.raises(CapacityError, match="run `gramary prune`, or open the table without"):
            Table.open(folder, share="b")
        Table.open(folder).close()
    assert command("prune") == 0
    Table.open(folder, share="b").close()


@pytest.mark.remedy("expected {source.spec.table_index}, the only one in", "because {folder} has")
def test_kind_16_which_layer(make_checkpoint: Callable[..., Path], folder: Path) -> None:
    several = make_checkpoint(codec="fp8", ple_layer_ids=(1, 3))
    with pytest.raises(ArgumentError, match="table_index: expected an index from 0 to 1, because"):
        Table.open(several)
    Table.open(several, table_index=1).close()
    pack = several.parent / "one.pack"
    assert command("pack", str(folder), str(pack)) == 0
    with pytest.raises(ArgumentError, match="the only one in"):
        Table.open(pack, table_index=1)
    Table.open(pack, table_index=0).close()


def test_kind_16_settings_are_what_the_messages_name() -> None:
    """Each variable that a message tells to set is one that the settings read."""
    names = {f"GRAMARY_{field.name.upper()}" for field in dataclasses.fields(Settings)}
    told = {"GRAMARY_MEMORY_LIMIT_BYTES", "GRAMARY_SHARE_FOLDER", "GRAMARY_PIN_HOST",
            "GRAMARY_NUM_THREADS", "GRAMARY_HOST_GIB", "GRAMARY_REQUEST_TIMEOUT_S"}  # fmt: skip
    assert told <= names
