"""One rank of a sharded table: opens its part, looks up a batch, reduces, compares.

    python shard_worker.py BACKEND RANK SIZE STORE FOLDER

Run by tests/test_table_distributed.py, once a rank; prints "ok" when every result was right.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from table_stage import encoded_table, expected_embedding, random_batch, small_spec

from gramary import Table

PLACEMENTS = {
    "gloo": ("host", "disk", "host=7KiB,disk"),
    "nccl": ("device", "host", "device=5KiB,host=5KiB,disk"),
}


def main(backend: str, rank: int, size: int, store: str, folder: Path) -> None:
    """Checks that the ranks' results sum to the whole, for every placement and way to share."""
    spec = small_spec()
    encoded, codec = encoded_table(spec, "fp8")
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    batch = random_batch(spec, [30, 0, 9], num_padding=1)
    expected = expected_embedding(spec, codec, encoded, batch, torch.uint8)
    for placement in PLACEMENTS[backend]:
        for shard_by in ("rows", "heads"):
            options = {"placement": placement, "shard": (rank, size), "shard_by": shard_by}
            with Table.open(folder, device=device, **options) as table:
                rows = table.embed(*(tensor.to(device) for tensor in batch), dtype=torch.uint8)
                # A row's bytes come from one rank and zeros from the others: their sum is exact.
                dist.all_reduce(rows)
                assert torch.equal(rows.cpu(), expected), (placement, shard_by)
                assert table.placement.num_rows < spec.num_rows
    dist.destroy_process_group()
    sys.stdout.write("ok\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
