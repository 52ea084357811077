"""Tensors that look like those of a PLE layer, under names that gramary does not read.

Converters to other engines' formats rename tensors. To such a folder "download all files" is no
answer: it is complete. Looked for only once something was found missing.
"""

from __future__ import annotations

import os
import re
from collections import Counter

from gramary.files.checkpoint.model_files import ModelFiles
from gramary.files.checkpoint.safetensors_header import read_header
from gramary.files.checkpoint.strict_json import show

# What is left of the names of a layer and its table, whatever stands around it.
_LOOKS_LIKE_ONE = re.compile(
    r"n_?gram|(?:^|[._/])ple[._/]|ple_embed|layer_multipliers", re.IGNORECASE
)
# The names as transformers has them: those of the table, and the layer's other weights.
_KNOWN = re.compile(
    r"model\.(?:language_model\.)?layers\.[0-9]+\.ple\."
    r"(?:ple_embedding\.|(?:key_proj|value_proj|norm_key|norm_query|norm_conv|conv1d)\.).*",
    re.DOTALL,
)
_NUMBER = re.compile(r"[0-9]+")
_NUM_SHOWN = 4


def describe_renamed(files: ModelFiles) -> str | None:
    """Returns which tensors another converter seems to have renamed, and what to do; or None.

    Raises:
        CheckpointError: a file cannot be read or is malformed.
    """
    names = set(files.placed)
    for name in files.names:
        if os.path.exists(files.folder / name):
            names |= {entry.name for entry in read_header(files.folder / name)}
    similar = sorted(
        name for name in names if _LOOKS_LIKE_ONE.search(name) and not _KNOWN.fullmatch(name)
    )
    if not similar:
        return None
    # One of each kind: shards differ by a number.
    kinds = Counter(_NUMBER.sub("N", name) for name in similar)
    first_of_kind = {_NUMBER.sub("N", name): name for name in reversed(similar)}
    shown = [
        show(first_of_kind[kind]) + (f" ({count} of this kind)" if count > 1 else "")
        for kind, count in kinds.most_common(_NUM_SHOWN)
    ]
    more = " and others" if len(kinds) > _NUM_SHOWN else ""
    return (
        f"its files hold {', '.join(shown)}{more}, which look like those of a PLE layer: another "
        f"converter has renamed the tensors, and gramary does not read these names; take the "
        f"checkpoint that was converted, or rename them as docs/checkpoints.md has them"
    )
