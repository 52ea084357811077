"""Small tables and batches for the tests of the offload."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from gramary import Batch, HashSpec, Settings, Table
from gramary.model.codecs import encode_rows


def wait_until(condition: Callable[[], bool], *, seconds: float = 10) -> None:
    """Returns once a condition holds; fails if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def state_in(stat: Path) -> str:
    """Returns the state of a process or thread by its file in /proc, behind its name."""
    return stat.read_text().rpartition(")")[2].split()[0]


def is_alive(pid: int) -> bool:
    """Returns whether a process is there and has not ended."""
    try:
        return state_in(Path(f"/proc/{pid}/stat")) not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def codes_within_limits(attempt: Callable[[], int]) -> set[int]:
    """Makes an attempt in forked children that may have 1, 2, ... 7 threads.

    Args:
        attempt: run as another user, whose processes the limit counts; returns an exit code.

    Returns:
        The exit codes; 3 where the attempt raised, and below 0 the signal that ended a child.
    """
    codes = set()
    for num_threads in range(1, 8):
        child = os.fork()
        if child == 0:
            code = 3
            try:
                os.setresuid(65534, 65534, 65534)
                resource.setrlimit(resource.RLIMIT_NPROC, (num_threads, num_threads))
                code = attempt()
            finally:
                os._exit(code)
        codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


def freeze(pid: int) -> None:
    """Stops a process and waits until each of its threads stands."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    wait_until(lambda: all(state_in(thread / "stat") == "T" for thread in threads.iterdir()))


def mapped_inodes(pid: int) -> set[int]:
    """Returns the inodes of our memory that a process has mapped; other files may have the same."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if "memfd:gramary" in line}


OVERWRITING = """
import json, mmap, random, sys
memory = mmap.mmap(int(sys.argv[1]), 0)
ranges, chance = json.loads(sys.argv[2]), random.Random(int(sys.argv[3]))
print("begins", flush=True)
while True:
    begin, size = chance.choice(ranges)
    at = begin + 8 * chance.randrange(size // 8)
    few = chance.choice([0, 1, 2, 3, 9, 10, 16, 17, 2**32 - 1, 2**63, 2**64 - 1])
    many = chance.getrandbits(64)
    memory[at : at + 8] = chance.choice([few, many]).to_bytes(8, "little")
"""


@contextlib.contextmanager
def overwritten_by_another_process(
    descriptor: int, ranges: list[tuple[int, int]], *, seed: int
) -> Iterator[None]:
    """Has another process write random words into ranges of a memory file during a block.

    Args:
        descriptor: of the file.
        ranges: offset and bytes of each.
        seed: of the words.
    """
    writer = subprocess.Popen(
        [sys.executable, "-S", "-c", OVERWRITING, str(descriptor), json.dumps(ranges), str(seed)],
        pass_fds=[descriptor],
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"begins\n"
        yield
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


def make_spec(*, ngram_size: int = 3, table_index: int = 0) -> HashSpec:
    """Returns a small geometry: a few thousand rows of 32 values."""
    heads = (ngram_size - 1) * 2
    return HashSpec.from_config(
        {
            "vocab_size": 97,
            "hidden_size": 64,
            "ple_embed_dim": 32 * heads,
            "ngram_size": ngram_size,
            "heads_per_ngram": 2,
            "ple_layer_ids": [1, 2, 3],
            "num_hidden_layers": 4,
            "ngram_vocab_size_base": 500,
            "make_ngram_vocab_size_divisible_by": 8,
            "eos_token_id": 5,
        },
        table_index=table_index,
    )


def make_table(
    codec: str = "fp8",
    *,
    placement: str = "host",
    device: str = "cpu",
    settings: Settings | None = None,
    **geometry: int,
) -> Table:
    """Returns a table of random rows, on the host of a CPU unless told otherwise."""
    spec = make_spec(**geometry)
    generator = torch.Generator().manual_seed(spec.table_index)
    values = torch.randn(spec.num_rows, spec.row_dim, generator=generator)
    rows, encoded = encode_rows(codec, values)
    table = Table.empty(
        spec, encoded, placement=placement, device=device, settings=settings, num_shards=1
    )
    table.load_shard(0, rows)
    table.finish_loading()
    return table


def make_batch(
    seed: int, *, lengths: tuple[int, ...] = (5, 0, 3), prefill: bool = True, width: int = 2
) -> Batch:
    """Returns a random host batch of requests with histories."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return Batch(
        torch.randint(97, (sum(lengths),), generator=generator),
        starts,
        history=torch.randint(97, (len(lengths), width), generator=generator),
        is_prefill=prefill,
    )


def expected_rows(table: Table, batch: Batch, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns the batch's rows by the table's own call."""
    history = batch.history
    if history is not None:
        history = history[:, history.shape[1] - table.spec.history_length :]
    return table.embed(batch.token_ids, batch.query_start_loc, history, dtype=dtype)
