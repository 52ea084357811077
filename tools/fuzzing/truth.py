"""Reading tables a second time, with nothing of gramary: the judge of what its readers accept.

Written from `docs/format.md`, the safetensors specification and the hash's definition; primes come
from sympy, numbers from torch's own float8.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import sympy
import torch
import xxhash

CODEC_OF_DTYPE = {"BF16": "bf16", "F16": "fp16", "F32": "fp32", "F8_E4M3": "fp8", "U8": "nvfp4"}
DTYPE_OF_CODEC = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ROW_BYTES = {"bf16": (2, 1), "fp16": (2, 1), "fp32": (4, 1), "fp8": (1, 1), "nvfp4": (9, 16)}
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
MASK = (1 << 64) - 1


class WrongFileError(Exception):
    """The files are no table."""


@dataclasses.dataclass(frozen=True)
class Constants:
    """The numbers that a geometry gives."""

    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    num_rows: int

    @property
    def buffers(self) -> dict[str, tuple[int, ...]]:
        """As a checkpoint names them."""
        return {
            "layer_multipliers": self.multipliers,
            "ngram_heads_vocab_sizes": self.sizes,
            "ngram_heads_offsets": self.offsets,
        }


@dataclasses.dataclass(frozen=True)
class Truth:
    """A table: encoded rows, and which of them may be read."""

    codec: str
    scale: float | None
    rows: np.ndarray  # uint8 [num_rows, row_bytes]
    is_good: np.ndarray  # bool [num_rows]
    constants: Constants

    def decode(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns all rows, rounded once to `dtype`; None is what a lookup gives by default."""
        rows = torch.from_numpy(self.rows)
        if self.codec in DTYPE_OF_CODEC:
            values = rows.view(DTYPE_OF_CODEC[self.codec])
            return values if dtype is None else values.to(dtype)
        dtype = dtype or torch.bfloat16
        scale = torch.tensor(self.scale, dtype=torch.float32)
        if self.codec == "fp8":
            return (rows.view(torch.float8_e4m3fn).float() * scale).to(dtype)
        row_dim = rows.shape[1] * 16 // 9
        codes, blocks = rows.split((row_dim // 2, row_dim // 16), dim=1)
        values = E2M1[torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()]
        blocks = blocks.contiguous().view(torch.float8_e4m3fn).float()
        values = values.unflatten(-1, (-1, 16)) * blocks[..., None]
        return (values.flatten(-2) * scale).to(dtype)


def hash_constants(config: Mapping[str, Any], index: int) -> Constants:
    """Returns the constants of a model's PLE module."""
    multiple = config["make_ngram_vocab_size_divisible_by"]
    seed = config.get("seed")
    return _hash_constants(
        config["vocab_size"],
        config["ngram_size"],
        config["heads_per_ngram"],
        config["ngram_vocab_size_base"],
        multiple,
        1234 if seed is None else seed,
        index,
    )


@functools.lru_cache(maxsize=4096)
def _hash_constants(
    vocab: int, ngram: int, heads_per: int, base: int, multiple: int, seed: int, index: int
) -> Constants:
    heads = (ngram - 1) * heads_per
    primes, prime = [], base - 1
    for _ in range((index + 1) * heads):
        prime = int(sympy.nextprime(prime))
        primes.append(prime)
    sizes = tuple(primes[index * heads :])
    half = max(1, ((2**63 - 1) // vocab) // 2)
    multipliers = []
    for i in range(ngram):
        x = (seed + 10007 * index + 0x9E3779B97F4A7C15 * (i + 2)) & MASK
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
        multipliers.append(2 * ((x ^ (x >> 31)) % half) + 1)
    offsets = tuple(itertools.accumulate((0, *sizes[:-1])))
    total = offsets[-1] + sizes[-1]
    return Constants(tuple(multipliers), sizes, offsets, -(-total // multiple) * multiple)


def read_safetensors(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Returns the tensors of a file: dtype, shape, bytes."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: (
            entry["dtype"],
            entry["shape"],
            data[8 + size :][entry["data_offsets"][0] : entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def read_model(folder: Path, index: int) -> Truth:
    """Returns the table of a model's folder, by its dense index."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config") or config
    layer = sorted(set(config["ple_layer_ids"]))[index]
    constants = hash_constants(config, index)
    width = config.get("ple_embed_dim")
    width = config["hidden_size"] if width is None else width
    row_dim = width // len(constants.sizes)
    tensors: dict[str, Any] = {}
    for name in _files(folder):
        tensors.update(read_safetensors(folder / name))
    own = {}
    for name, tensor in tensors.items():
        found = re.match(
            rf"model\.(language_model\.)?layers\.0*{layer - 1}\.ple\.ple_embedding\.", name
        )
        if found:
            own[re.sub(r"shard_0*(\d)", r"shard_\1", name[found.end() :])] = tensor
    for name, expected in constants.buffers.items():
        if np.frombuffer(own[name][2], np.int64).tolist() != list(expected):
            raise WrongFileError(f"{name} differs")
    shards, rows = [], []
    while f"ngram_embedding.shard_{len(shards)}.weight" in own:
        shards.append(own[f"ngram_embedding.shard_{len(shards)}.weight"])
    codec = CODEC_OF_DTYPE[shards[0][0]]
    scale = None
    if codec in ("fp8", "nvfp4"):
        suffix = "weight_scale" if codec == "fp8" else "weight_scale_2"
        dtype, _, data = own[f"ngram_embedding.{suffix}"]
        (scale,) = struct.unpack("<f", data if dtype == "F32" else b"\0\0" + data)
    for number, (dtype, shape, data) in enumerate(shards):
        if CODEC_OF_DTYPE[dtype] != codec:
            raise WrongFileError("mixed dtypes")
        part = np.frombuffer(data, np.uint8).reshape(shape[0], -1)
        if codec == "nvfp4":
            blocks = own[f"ngram_embedding.shard_{number}.weight_scale"]
            part = np.hstack((part, np.frombuffer(blocks[2], np.uint8).reshape(shape[0], -1)))
        rows.append(part)
    return _truth(codec, scale, np.vstack(rows), row_dim, constants)


def _truth(codec: str, scale: float | None, rows: Any, row_dim: int, constants: Constants) -> Truth:
    per, over = ROW_BYTES[codec]
    if rows.shape != (constants.num_rows, row_dim * per // over):
        raise WrongFileError(
            f"rows are {rows.shape}, expected {constants.num_rows} of {row_dim} values"
        )
    return Truth(codec, scale, rows.copy(), np.ones(len(rows), bool), constants)


def _files(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir())
    if "model.safetensors" in names:
        return ["model.safetensors"]
    if "model.safetensors.index.json" in names:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        return sorted(
            name for name in set(index["weight_map"].values()) if (folder / name).exists()
        )
    return [name for name in names if name.endswith(".safetensors")]


def read_pack(data: bytes) -> Truth:
    """Returns the table of a pack, with the rows of altered blocks marked."""
    fields = struct.unpack_from("<8sIIQQIIII", data)
    magic, version, header, size, num_rows, row_bytes, block, per_block, length = fields
    if magic != b"GRAMPACK" or version != 1 or size != len(data):
        raise WrongFileError("magic, version or size")
    if xxhash.xxh64_intdigest(data[: header - 8]) != _number(data, header - 8):
        raise WrongFileError("header checksum")
    text = data[48 : 48 + length]
    metadata = json.loads(text)
    spec, codec = metadata["hash"], metadata["codec"]
    if json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode() != text:
        raise WrongFileError("form of the metadata")
    names = ("vocab_size", "ngram_size", "heads_per_ngram", "ngram_vocab_size_base")
    constants = _hash_constants(
        *(spec[name] for name in names), spec["rows_multiple"], spec["seed"], spec["ple_index"]
    )
    for name in ("multipliers", "sizes", "offsets"):
        if tuple(spec[name]) != getattr(constants, name):
            raise WrongFileError(f"{name} differ")
    seed, rows, is_good = xxhash.xxh64_intdigest(text), [], []
    for start in range(header, size, block):
        content = data[start : start + block]
        digest = xxhash.xxh64_intdigest(content[:-8], seed=(seed + start // block) & MASK)
        count = min(per_block, num_rows - len(rows) * per_block)
        used = np.frombuffer(content, np.uint8, count * row_bytes).reshape(count, row_bytes)
        rows.append(used)
        is_good += [digest == _number(content, block - 8)] * count
    truth = _truth(codec["name"], codec["scale"], np.vstack(rows), codec["row_dim"], constants)
    return dataclasses.replace(truth, is_good=np.array(is_good))


def finish_pack(left: bytes | str, fresh: bytes) -> bytes:
    """Returns what a build makes of a half-built pack: its first good blocks, then fresh ones.

    Args:
        left: what a killed build left, or anything else (which is dropped).
        fresh: the whole pack.
    """
    _, _, header, size, _, _, block, _, length = struct.unpack_from("<8sIIQQIIII", fresh)
    heads = [magic + fresh[8 : header - 8] for magic in (b"GRAMPACK", b"GRAMPART")]
    if isinstance(left, str) or len(left) != size or left[: header - 8] not in heads:
        return fresh
    if xxhash.xxh64_intdigest(left[: header - 8]) != _number(left, header - 8):
        return fresh
    seed, start = xxhash.xxh64_intdigest(fresh[48 : 48 + length]), header
    while start < size:
        content = left[start : start + block]
        digest = xxhash.xxh64_intdigest(content[:-8], seed=(seed + start // block) & MASK)
        if digest != _number(content, block - 8):
            break
        start += block
    return fresh[:header] + left[header:start] + fresh[start:]


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
