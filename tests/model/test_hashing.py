"""HashSpec: golden constants, every form of configuration, every refusal."""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gramary import HashSpec
from gramary.errors import ArgumentError, ConfigError
from gramary.model.hashing import num_ple_layers

REAL: dict[str, Any] = {
    "vocab_size": 248320,
    "hidden_size": 2560,
    "num_hidden_layers": 48,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ple_embed_dim": 2560,
    "ple_layer_ids": [2],
    "ngram_vocab_size_base": 20000000,
    "make_ngram_vocab_size_divisible_by": 128,
    "seed": 1234,
    "eos_token_id": 248044,
}


def real(**changes: Any) -> dict[str, Any]:
    """Returns the real configuration with fields changed, or left out where set to `...`."""
    values = {**REAL, **changes}
    return {name: value for name, value in values.items() if value is not ...}


def test_golden_constants() -> None:
    spec = HashSpec.from_config(REAL)
    assert spec.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert spec.sizes == (
        20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
        20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171,
    )  # fmt: skip
    assert spec.offsets[:3] == (0, 20000003, 40000026)
    assert (spec.num_hashed_rows, spec.num_rows) == (320001446, 320001536)
    assert (spec.num_heads, spec.row_dim, spec.embed_dim, spec.history_length) == (16, 160, 2560, 2)
    assert (spec.table_index, spec.decoder_layer) == (0, 1)


def test_every_form_gives_the_same_spec(tmp_path: Path) -> None:
    expected = HashSpec.from_config(REAL)

    class Configuration:
        def to_dict(self) -> dict[str, Any]:
            return REAL

    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "qwen4_exp", "text_config": REAL}))
    forms = [{"text_config": REAL}, {"text_config": Configuration()}, Configuration()]
    for form in [*forms, file, str(file), tmp_path, str(tmp_path)]:
        assert HashSpec.from_config(form) == expected


def test_hub_snapshot_of_symbolic_links(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    blob.write_text(json.dumps(REAL))
    snapshot = tmp_path / "snapshots" / "abcd"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").symlink_to("../../blobs/0123")
    assert HashSpec.from_config(snapshot) == HashSpec.from_config(REAL)


@pytest.mark.needs("transformers")
def test_transformers_configurations() -> None:
    import transformers

    text = transformers.Qwen4ExpTextConfig(**real())
    assert HashSpec.from_config(text) == HashSpec.from_config(REAL)
    whole = transformers.Qwen4ExpConfig(text_config=text)
    assert HashSpec.from_config(whole) == HashSpec.from_config(REAL)


@pytest.mark.behaviour(20)
@pytest.mark.parametrize(
    "changes",
    [
        {"eos_token_id": [248044, 7]},
        {"seed": ...},
        {"seed": None},
        {"split_ngram_parts": ...},
        {"split_ngram_parts": 128},
        {"ple_embed_dim": ...},
        {"ple_embed_dim": None},
        {"num_hidden_layers": ...},
        {"ple_layer_ids": (2, 2)},
    ],
)
def test_what_may_vary(changes: dict[str, Any]) -> None:
    """Behaviour 20: EOS may be an int or a list; seed and split_ngram_parts may be absent."""
    assert HashSpec.from_config(real(**changes)) == HashSpec.from_config(REAL)


def test_several_modules() -> None:
    config = real(ple_layer_ids=[30, 2, 30, 12])
    assert num_ple_layers(config) == 3
    specs = [HashSpec.from_config(config, table_index=index) for index in range(3)]
    assert [spec.decoder_layer for spec in specs] == [1, 11, 29]
    sizes = [size for spec in specs for size in spec.sizes]
    assert sizes == sorted(set(sizes))
    assert len(sizes) == 48
    assert len({spec.multipliers for spec in specs}) == 3
    assert specs[1] == dataclasses.replace(specs[0], table_index=1, decoder_layer=11)
    for table_index in (-1, 3, True, "0"):
        with pytest.raises(ArgumentError, match="table_index: expected an integer from 0 to 2"):
            HashSpec.from_config(config, table_index=table_index)  # type: ignore[arg-type]


@pytest.mark.parametrize("ple_layer_ids", [..., None, []])
def test_no_module(ple_layer_ids: Any) -> None:
    config = real(ple_layer_ids=ple_layer_ids)
    assert num_ple_layers(config) == 0
    with pytest.raises(ConfigError, match="ple_layer_ids: expected at least one layer id"):
        HashSpec.from_config(config)


@pytest.mark.behaviour(36)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("vocab_size", ..., "vocab_size: expected an integer, got no such field"),
        ("vocab_size", 0, "vocab_size: expected an integer from 1 to 2147483647, got 0"),
        ("vocab_size", 2**31, "vocab_size: expected an integer from 1"),
        ("vocab_size", "248320", "vocab_size: expected an integer, got '248320'"),
        ("vocab_size", 248320.0, "vocab_size: expected an integer, got 248320.0"),
        ("vocab_size", True, "vocab_size: expected an integer, got True"),
        ("eos_token_id", ..., "eos_token_id: expected an integer or a list .* got no such field"),
        ("eos_token_id", None, "eos_token_id: .* got None"),
        ("eos_token_id", [], r"eos_token_id: .* got \[\]"),
        ("eos_token_id", ["a"], "eos_token_id: .* got"),
        ("eos_token_id", 248320, "eos_token_id: expected an integer from 0 to 248319, got 248320"),
        ("eos_token_id", -1, "eos_token_id: .* got -1"),
        ("ngram_size", ..., "ngram_size: expected an integer, got no such field"),
        ("ngram_size", 1, "ngram_size: expected an integer from 2 to 5, got 1"),
        ("ngram_size", 6, "ngram_size: expected an integer from 2 to 5, got 6"),
        ("heads_per_ngram", 0, "heads_per_ngram: expected an integer from 1 to 512, got 0"),
        ("heads_per_ngram", -8, "heads_per_ngram: .* got -8"),
        ("ngram_vocab_size_base", ..., "ngram_vocab_size_base: .* got no such field"),
        ("ngram_vocab_size_base", 0, "ngram_vocab_size_base: .* got 0"),
        ("ngram_vocab_size_base", 2**40 + 1, "ngram_vocab_size_base: expected .* to 1099511627776"),
        ("ngram_vocab_size_base", 10**400, "ngram_vocab_size_base: "),
        ("make_ngram_vocab_size_divisible_by", 0, "make_ngram_vocab_size_divisible_by: .* got 0"),
        ("make_ngram_vocab_size_divisible_by", ..., "make_ngram_vocab_size_divisible_by: "),
        ("ple_embed_dim", 2561, "ple_embed_dim: expected a positive multiple of the 16 heads"),
        ("ple_embed_dim", 0, "ple_embed_dim: .* got 0"),
        ("ple_embed_dim", -2560, "ple_embed_dim: .* got -2560"),
        ("ple_embed_dim", 16 << 21, "row_dim: expected an integer from 1 to 1048576"),
        ("seed", "x", "seed: expected an integer, got 'x'"),
        ("seed", 2**64, "seed: expected an integer from"),
        ("ple_layer_ids", 2, "ple_layer_ids: expected a list of integers from 1 to 48, got 2"),
        ("ple_layer_ids", [0], r"ple_layer_ids: .* got \[0\]"),
        ("ple_layer_ids", [49], r"ple_layer_ids: .* got \[49\]"),
        ("ple_layer_ids", [True], r"ple_layer_ids: .* got \[True\]"),
        ("ple_layer_ids", "2", "ple_layer_ids: .* got '2'"),
    ],
)
def test_refusals(field: str, value: Any, message: str) -> None:
    """Behaviour 36: the message names the field, what was expected and what came."""
    with pytest.raises(ConfigError, match=message):
        HashSpec.from_config(real(**{field: value}))


def test_hidden_size_is_named_where_it_stands_in() -> None:
    with pytest.raises(ConfigError, match="hidden_size: expected a positive multiple"):
        HashSpec.from_config(real(ple_embed_dim=..., hidden_size=2561))
    with pytest.raises(ConfigError, match="hidden_size: expected an integer, got no such field"):
        HashSpec.from_config(real(ple_embed_dim=..., hidden_size=...))


@pytest.mark.parametrize(
    "changes",
    [
        {"ngram_vocab_size_base": 2**40, "heads_per_ngram": 512, "ple_embed_dim": 1024 << 20},
        {"make_ngram_vocab_size_divisible_by": 2**40, "ple_embed_dim": 16 << 20,
         "ngram_vocab_size_base": 2**40},
    ],
)  # fmt: skip
def test_tables_beyond_64_bits(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected a table of at most 9223372036854775807 bytes"):
        HashSpec.from_config(real(**changes))


@pytest.mark.parametrize(
    ("changes", "table_index"),
    [
        ({"heads_per_ngram": 10**9, "ple_embed_dim": 2 * 10**9}, 0),
        ({"ngram_size": 10**9}, 0),
        ({"ngram_vocab_size_base": 10**30}, 0),
        ({"ple_layer_ids": list(range(1, 200001)), "num_hidden_layers": ...}, 199999),
    ],
)
def test_hostile_sizes_fail_quickly(changes: dict[str, Any], table_index: int) -> None:
    start = time.monotonic()
    with pytest.raises(ConfigError):
        HashSpec.from_config(real(**changes), table_index)
    assert time.monotonic() - start < 2


def test_files_that_hold_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match=r"config\.json: .* No such file"):
        HashSpec.from_config(tmp_path)
    for content, message in [
        ("", "expected JSON"),
        ("{", "expected JSON"),
        ("[1]", "expected a JSON object, got list"),
        ("[" * 100000, "expected JSON"),
        (json.dumps(real(seed="x")), "seed: expected an integer"),
        (json.dumps(real(ngram_size=9)), "ngram_size: expected an integer from 2 to 5"),
    ]:
        path.write_text(content)
        with pytest.raises(ConfigError, match=rf"config\.json: .*{message}"):
            HashSpec.from_config(path)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError, match=r"config\.json: expected JSON"):
        HashSpec.from_config(path)


def test_a_configuration_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match=r"config\.json: expected a file"):
        HashSpec.from_config(tmp_path)


@pytest.mark.parametrize("config", [None, 3, [REAL], {"text_config": 3}])
def test_no_configuration(config: Any) -> None:
    with pytest.raises(ConfigError, match="expected a mapping, a transformers configuration"):
        HashSpec.from_config(config)


def test_frozen_and_derived() -> None:
    spec = HashSpec.from_config(REAL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.seed = 1  # type: ignore[misc]
    with pytest.raises(ConfigError, match="eos_token_id: expected an integer from 0 to 99"):
        dataclasses.replace(spec, vocab_size=100)
    assert hash(spec) == hash(dataclasses.replace(spec))
    assert spec != dataclasses.replace(spec, seed=5)
