"""`table_index` and `decoder_layer` everywhere; files keep their names, and count as they did."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gramary import Connector, HashSpec, PLELayer, Table
from gramary.files.hash_members import members_of, spec_of
from gramary.layer import PLEGeometry

MODEL = Path(__file__).parents[1] / "models/tiny"


def test_an_old_keyword_is_unknown_to_python() -> None:
    """No second name for a thing: the message is Python's own."""
    with Table.open(MODEL) as table, Connector(table, max_tokens=4) as connector:
        wait: Any = connector.wait
        calls: dict[str, tuple[Any, ...]] = {
            "ple_index": (HashSpec.from_config, PLEGeometry.from_config, PLELayer),
            "layer": (Table.open, PLELayer.from_checkpoint, wait),
        }
        for keyword, functions in calls.items():
            for function in functions:
                with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
                    function(MODEL, **{keyword: 0})


def test_files_keep_their_names_and_count_layers_from_one() -> None:
    config = json.loads((MODEL / "config.json").read_text())
    spec = HashSpec.from_config(config | {"ple_layer_ids": [2, 4]}, table_index=1)
    assert (spec.table_index, spec.decoder_layer) == (1, 3)
    members = members_of(spec)
    assert (members["ple_index"], members["layer_id"]) == (1, 4)
    assert not {"table_index", "decoder_layer"} & set(members)
    assert spec_of(members) == spec == dataclasses.replace(spec)
