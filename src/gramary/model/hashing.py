"""The geometry of a hashed n-gram table: from a model configuration to the constants of its hash.

A token's row ids are `floor_mod(t0*m0 ^ t1*m1 ^ ..., sizes[h]) + offsets[h]` in wrapping int64
(see `gramary.ops.hash`); this module derives the multipliers, sizes and offsets.

Source: `Qwen4ExpTextNGramEmbedding` of Hugging Face transformers 5.24
(`transformers/models/qwen4_exp/modeling_qwen4_exp.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

from gramary.errors import ArgumentError, ConfigError
from gramary.model.config import Fields, read_config
from gramary.model.primes import primes_from

DEFAULT_SEED = 1234

MAX_NUM_HEADS = 1024
# Heads of all modules up to ours: as many primes have to be found.
MAX_PRIMES = 16384
MAX_VOCAB_SIZE = 2**31 - 1
MAX_DECODER_LAYER = 2**31 - 2
MAX_NGRAM_VOCAB_SIZE = 2**40
MAX_ROW_DIM = 2**20
# Bytes of the widest encoding (float32), so that every byte offset is an int64.
MAX_TABLE_BYTES = 2**63 - 1

_MASK64 = (1 << 64) - 1
_SPLITMIX_GAMMA = 0x9E3779B97F4A7C15


@dataclasses.dataclass(frozen=True)
class HashSpec:
    """Geometry and hash constants of one n-gram table; any instance is valid.

    Heads are order-major: the first `heads_per_ngram` hash bigrams, the next trigrams, and so on.
    Head h owns the rows `offsets[h]` to `offsets[h] + sizes[h] - 1`.

    Attributes:
        vocab_size: token ids are 0 to vocab_size-1.
        eos_token_id: the token that ends a sequence and stands for every missing predecessor.
        ngram_size: longest n-gram, 2 to 5.
        heads_per_ngram: hash functions for each n-gram length.
        row_dim: elements of one row.
        ngram_vocab_size_base: lower bound of every head's size.
        rows_multiple: the table is padded to a multiple of so many rows
            (`make_ngram_vocab_size_divisible_by`).
        seed: seed of the multipliers.
        table_index: dense index of the table among the model's, in the order of its PLE layers.
        decoder_layer: the model's layer that uses the table, counted from 0 (`ple_layer_ids` of a
            configuration counts from 1).
        multipliers: one odd factor for each place in the n-gram, current token first
            [ngram_size].
        sizes: rows of each head, distinct primes [num_heads].
        offsets: first row of each head [num_heads].

    Raises:
        ConfigError: a field is not an integer or out of its range; the message names it.
    """

    vocab_size: int
    eos_token_id: int
    ngram_size: int
    heads_per_ngram: int
    row_dim: int
    ngram_vocab_size_base: int
    rows_multiple: int
    seed: int = DEFAULT_SEED
    table_index: int = 0
    decoder_layer: int = 0
    multipliers: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)
    sizes: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)
    offsets: tuple[int, ...] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_geometry(self)
        sizes = primes_from(
            self.ngram_vocab_size_base, skip=self.table_index * self.num_heads, count=self.num_heads
        )
        # The class is frozen: derived fields are written here once, behind its back.
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "offsets", (0, *itertools.accumulate(sizes[:-1])))
        object.__setattr__(self, "multipliers", _multipliers(self))
        _check_table_bytes(self)

    @classmethod
    def from_config(cls, config: object, table_index: int = 0) -> HashSpec:
        """Returns the geometry of one PLE module of a model.

        Args:
            config: a mapping with the fields of `config.json`, an object with `to_dict()` (a
                transformers configuration), or the path of a `config.json` or of the folder that
                holds it. Fields inside `text_config`, where there is one, are the ones read.
            table_index: which table, counting `ple_layer_ids` sorted and without repeats.

        Raises:
            ConfigError: a file cannot be read, or a field is missing or wrong; the message names
                the field, what was expected and what came.
            ArgumentError: the model has no table with this `table_index`.
        """
        fields = read_config(config)
        layer_ids = _ple_layer_ids(fields)
        if not layer_ids:
            raise fields.error("ple_layer_ids", "at least one layer id", [])
        if type(table_index) is not int or not 0 <= table_index < len(layer_ids):
            raise ArgumentError(
                f"table_index: expected an integer from 0 to {len(layer_ids) - 1} "
                f"(ple_layer_ids {list(layer_ids)}), got {table_index!r}"
            )
        with fields.as_origin():
            return cls(
                vocab_size=fields.integer("vocab_size"),
                eos_token_id=_eos_token_id(fields),
                ngram_size=fields.integer("ngram_size"),
                heads_per_ngram=fields.integer("heads_per_ngram"),
                row_dim=_row_dim(fields),
                ngram_vocab_size_base=fields.integer("ngram_vocab_size_base"),
                rows_multiple=fields.integer("make_ngram_vocab_size_divisible_by"),
                seed=fields.integer("seed", default=DEFAULT_SEED),
                table_index=table_index,
                decoder_layer=layer_ids[table_index] - 1,
            )

    @functools.cached_property
    def num_heads(self) -> int:
        """Rows of one token."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def embed_dim(self) -> int:
        """Elements of one token's concatenated rows."""
        return self.num_heads * self.row_dim

    @functools.cached_property
    def history_length(self) -> int:
        """Tokens before the current one that take part in its hash."""
        return self.ngram_size - 1

    @property
    def num_hashed_rows(self) -> int:
        """Rows that a token can hash to."""
        return self.offsets[-1] + self.sizes[-1]

    @functools.cached_property
    def num_rows(self) -> int:
        """Rows of the table, padding included."""
        return -(-self.num_hashed_rows // self.rows_multiple) * self.rows_multiple


def num_ple_layers(config: object) -> int:
    """Returns how many PLE modules a model has; 0 if it has none.

    Args:
        config: as for `HashSpec.from_config`.

    Raises:
        ConfigError: a file cannot be read, or `ple_layer_ids` is wrong.
    """
    return len(ple_layer_ids(config))


def ple_layer_ids(config: object) -> tuple[int, ...]:
    """Returns the decoder layers of a model that have a PLE module, sorted, counted from 1.

    Args:
        config: as for `HashSpec.from_config`.

    Raises:
        ConfigError: a file cannot be read, or `ple_layer_ids` is wrong.
    """
    return _ple_layer_ids(read_config(config))


def _ple_layer_ids(fields: Fields) -> tuple[int, ...]:
    """Returns the decoder layers that have a PLE module: one-based, sorted, without repeats."""
    value = fields.get("ple_layer_ids")
    if value is None:
        return ()
    num_layers = fields.get("num_hidden_layers")
    is_bounded = type(num_layers) is int
    expected = f"a list of integers from 1 to {num_layers if is_bounded else 'the last layer'}"
    if not isinstance(value, (list, tuple)):
        raise fields.error("ple_layer_ids", expected, value)
    for layer_id in value:
        if type(layer_id) is not int or layer_id < 1 or (is_bounded and layer_id > num_layers):
            raise fields.error("ple_layer_ids", expected, value)
    return tuple(sorted(set(value)))


def _eos_token_id(fields: Fields) -> int:
    """Returns the configured EOS token; the first counts where there are several."""
    value = fields.get("eos_token_id")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    if type(first) is not int:
        raise fields.error("eos_token_id", "an integer or a list that begins with one", value)
    return first


def _row_dim(fields: Fields) -> int:
    """Returns the elements of one row: the embedding's width shared out among the heads."""
    name = "hidden_size" if fields.get("ple_embed_dim") is None else "ple_embed_dim"
    embed_dim = fields.integer(name)
    num_heads = (fields.integer("ngram_size") - 1) * fields.integer("heads_per_ngram")
    if num_heads < 1:
        return 1  # The constructor names the field that is at fault.
    if embed_dim < 1 or embed_dim % num_heads:
        expected = f"a positive multiple of the {num_heads} heads"
        raise fields.error(name, expected, embed_dim)
    return embed_dim // num_heads


def _check_geometry(spec: HashSpec) -> None:
    """Raises ConfigError for the first field that is out of its range."""
    _check("vocab_size", spec.vocab_size, 1, MAX_VOCAB_SIZE)
    _check("eos_token_id", spec.eos_token_id, 0, spec.vocab_size - 1)
    _check("ngram_size", spec.ngram_size, 2, 5)
    _check("heads_per_ngram", spec.heads_per_ngram, 1, MAX_NUM_HEADS // (spec.ngram_size - 1))
    _check("row_dim", spec.row_dim, 1, MAX_ROW_DIM)
    _check("ngram_vocab_size_base", spec.ngram_vocab_size_base, 1, MAX_NGRAM_VOCAB_SIZE)
    _check("make_ngram_vocab_size_divisible_by", spec.rows_multiple, 1, MAX_NGRAM_VOCAB_SIZE)
    _check("seed", spec.seed, -(2**63), 2**64 - 1)
    _check("table_index", spec.table_index, 0, MAX_PRIMES // spec.num_heads - 1)
    _check("decoder_layer", spec.decoder_layer, 0, MAX_DECODER_LAYER)


def _check(name: str, value: Any, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{name}: expected an integer from {low} to {high}, got {value!r}")


def _check_table_bytes(spec: HashSpec) -> None:
    """Raises ConfigError where a byte offset into the table could leave int64."""
    table_bytes = spec.num_rows * spec.row_dim * 4
    if table_bytes > MAX_TABLE_BYTES:
        raise ConfigError(
            f"ngram_vocab_size_base: expected a table of at most {MAX_TABLE_BYTES} bytes in "
            f"float32, got {spec.num_rows} rows of {spec.row_dim} ({table_bytes} bytes)"
        )


def _multipliers(spec: HashSpec) -> tuple[int, ...]:
    """Returns the odd hash multipliers, small enough that token * multiplier stays in int64."""
    half = max(1, ((2**63 - 1) // spec.vocab_size) // 2)
    base = spec.seed + 10007 * spec.table_index
    return tuple(
        2 * (_splitmix64(base + _SPLITMIX_GAMMA * (place + 1)) % half) + 1
        for place in range(spec.ngram_size)
    )


def _splitmix64(value: int) -> int:
    """Returns the splitmix64 successor of a 64-bit state (Steele, Lea and Flood, 2014)."""
    value = (value + _SPLITMIX_GAMMA) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


__all__ = ["HashSpec", "num_ple_layers", "ple_layer_ids"]
