"""What a checkpoint brings for a PLE layer beside the rows that a table reads by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from gramary.errors import HashMismatchError, UnsupportedError
from gramary.model.hashing import HashSpec
from gramary.table import Table

# vLLM's buffers, and the field of a `HashSpec` with the same numbers.
_FIELDS = {
    "layer_multipliers": "multipliers",
    "ngram_heads_vocab_sizes": "sizes",
    "ngram_heads_offsets": "offsets",
}
_SHARD = re.compile(r"ngram_embedding\.shard_(\d+)\.weight")
NUM_SAMPLES = 16


def hash_numbers(stock: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns the numbers of the hash that vLLM derived from the configuration, by buffer."""
    return {name: tuple(getattr(stock, name).tolist()) for name in _FIELDS}


def check_hash(numbers: Mapping[str, tuple[int, ...]], spec: HashSpec) -> None:
    """Raises HashMismatchError unless vLLM and gramary derived the same hash."""
    for name, field in _FIELDS.items():
        if numbers[name] != getattr(spec, field):
            raise HashMismatchError(
                f"{field}: vLLM derives {numbers[name]} from the model's configuration, and "
                f"{getattr(spec, field)} belongs to the table: it is another model's"
            )


def check_hash_buffer(
    numbers: Mapping[str, tuple[int, ...]], name: str, tensor: torch.Tensor
) -> None:
    """Raises HashMismatchError unless a checkpoint's buffer holds the configuration's numbers.

    Args:
        numbers: as `hash_numbers` returns them.
        name: of the buffer.
        tensor: integers of any dtype and device.
    """
    if name not in numbers:
        raise HashMismatchError(
            f"{name}: expected one of {', '.join(numbers)} in the checkpoint of a PLE layer"
        )
    found = tuple(int(value) for value in tensor.flatten().tolist())
    if found != numbers[name]:
        raise HashMismatchError(
            f"{name}: the checkpoint holds {found}, the model's configuration gives "
            f"{numbers[name]}: its files are of two models"
        )


def check_shard(table: Table, num_shards: int, name: str, rows: torch.Tensor) -> None:
    """Compares rows that an engine loads while it serves with those that are served.

    Args:
        table: what serves.
        num_shards: shards of the checkpoint.
        name: of the tensor, relative to the PLE layer's module; others than rows are passed over.
        rows: the shard [n, columns] in the checkpoint's own dtype.

    Raises:
        UnsupportedError: a row that was compared differs.
    """
    found = _SHARD.fullmatch(name)
    if found is None or not rows.numel():
        return
    shard_rows = -(-table.spec.num_rows // num_shards)
    step = max(1, rows.shape[0] // NUM_SAMPLES)
    at = torch.arange(0, rows.shape[0], step, device="cpu")
    served = table.lookup((at + int(found[1]) * shard_rows).to(table.device), dtype=torch.uint8)
    given = rows[at.to(rows.device)].contiguous().view(torch.uint8).to(served.device)
    # nvfp4 keeps a row's block scales behind its codes; a checkpoint has them in another tensor.
    if not torch.equal(served[:, : given.shape[1]], given):
        raise UnsupportedError(
            f"{name}: its rows differ from those that are served, which do not change while an "
            "engine runs: start it again with the new checkpoint"
        )


__all__ = ["check_hash", "check_hash_buffer", "check_shard", "hash_numbers"]
