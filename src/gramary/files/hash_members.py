"""A hash specification as files have it: the members of a JSON object, and back.

Files kept the names that they were given first: `ple_index` is `HashSpec.table_index`, and
`layer_id` counts the decoder layers from 1, as `ple_layer_ids` of a configuration does, where
`HashSpec.decoder_layer` counts from 0. This module is the only place that converts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gramary.errors import ConfigError
from gramary.model.hashing import MAX_DECODER_LAYER, HashSpec

_NAMES_IN_FILES = {"table_index": "ple_index", "decoder_layer": "layer_id"}
_FIELDS = dataclasses.fields(HashSpec)

MEMBER_NAMES = tuple(_NAMES_IN_FILES.get(field.name, field.name) for field in _FIELDS)


def members_of(spec: HashSpec) -> dict[str, Any]:
    """Returns the members of a specification, its derived constants included."""
    values = [getattr(spec, field.name) for field in _FIELDS]
    return dict(zip(MEMBER_NAMES, values, strict=True)) | {"layer_id": spec.decoder_layer + 1}


def spec_of(members: Mapping[str, Any]) -> HashSpec:
    """Returns the specification that has these members; its constants are derived, not read.

    Args:
        members: one for each of `MEMBER_NAMES`, with any value.

    Raises:
        ConfigError: a value is not an integer or out of its range.
    """
    layer_id = members["layer_id"]
    if type(layer_id) is not int or not 1 <= layer_id <= MAX_DECODER_LAYER + 1:
        raise ConfigError(
            f"layer_id: expected an integer from 1 to {MAX_DECODER_LAYER + 1}, got {layer_id!r}"
        )
    values = {
        field.name: members[name]
        for field, name in zip(_FIELDS, MEMBER_NAMES, strict=True)
        if field.init
    }
    return HashSpec(**{**values, "decoder_layer": layer_id - 1})
