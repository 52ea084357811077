"""What every receipt says (who measured what, where), and checks that all kinds share.

The head of a receipt, before its results:

    schema       which kind of receipt, and its version
    name         the benchmark or the run, e.g. "ngram_ids"
    command      words of the command, file names without folders
    revision     {commit: hex or null, clean: true, false or null}; null is "unknown"
    sources      {path in the repository: sha256}: the code that was measured
    taken_at     UTC, ISO 8601
    hardware     {cpu, num_cpus, simd, memory_bytes, gpus: [{name, memory_bytes, capability}]}
    versions     {python, gramary, torch, ...}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.receipts.errors import ReceiptError

_HEAD = {
    "schema": str,
    "name": str,
    "command": list,
    "revision": dict,
    "sources": dict,
    "taken_at": str,
    "hardware": dict,
    "versions": dict,
}
_REVISION = {"commit": (str, type(None)), "clean": (bool, type(None))}
_HARDWARE = {"cpu": str, "num_cpus": int, "simd": str, "memory_bytes": int, "gpus": list}
_GPU = {"name": str, "memory_bytes": int, "capability": str}

# An absolute path of at least two components that starts a word: "GB/s" and "a/b" are no paths.
_ABSOLUTE_PATH = re.compile(r"(?:^|[\s=:'\"(\[,])(?:/[\w.@+-]+){2,}|[A-Za-z]:\\\\")


def validate_head(receipt: Any, schema: str, results: str) -> None:
    """Checks what all kinds of receipts share: the head, and that no text holds a path.

    Args:
        receipt: the parsed JSON document.
        schema: the schema it has to follow.
        results: name of the list that holds the results.

    Raises:
        ReceiptError: a field is missing, unknown, empty or of the wrong type, the schema is
            another one, or a text holds an absolute path.
    """
    require_fields("receipt", receipt, {**_HEAD, results: list})
    if receipt["schema"] != schema:
        raise ReceiptError(f"receipt.schema: expected {schema!r}, got {receipt['schema']!r}")
    require_fields("receipt.revision", receipt["revision"], _REVISION)
    commit = receipt["revision"]["commit"]
    if commit is not None and not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ReceiptError(f"receipt.revision.commit: expected 40 hex digits, got {commit!r}")
    require_fields("receipt.hardware", receipt["hardware"], _HARDWARE)
    for index, gpu in enumerate(receipt["hardware"]["gpus"]):
        require_fields(f"receipt.hardware.gpus[{index}]", gpu, _GPU)
    for field in ("sources", "versions", results, "command"):
        if not receipt[field]:
            raise ReceiptError(f"receipt.{field}: expected at least one entry, got none")
    _refuse_paths("receipt", receipt)


def require_fields(where: str, value: Any, fields: Mapping[str, Any]) -> None:
    """Raises ReceiptError unless `value` is an object of exactly these fields and types."""
    if not isinstance(value, Mapping):
        raise ReceiptError(f"{where}: expected an object, got {type(value).__name__}")
    for problem, names in (
        ("missing", [name for name in fields if name not in value]),
        ("unknown", [name for name in value if name not in fields]),
    ):
        if names:
            raise ReceiptError(f"{where}: {problem} field {names[0]!r}")
    for name, kinds in fields.items():
        # bool is an int to isinstance; a count must not be one.
        wrong_bool = isinstance(value[name], bool) and not _accepts_bool(kinds)
        if wrong_bool or not isinstance(value[name], kinds):
            raise ReceiptError(f"{where}.{name}: wrong type {type(value[name]).__name__}")


def _accepts_bool(kinds: Any) -> bool:
    return bool in kinds if isinstance(kinds, tuple) else kinds is bool


def _refuse_paths(where: str, value: Any) -> None:
    """Raises ReceiptError where a text anywhere in `value` holds an absolute path."""
    if isinstance(value, str):
        if _ABSOLUTE_PATH.search(value):
            raise ReceiptError(f"{where}: holds an absolute path: {value!r}")
        return
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, (list, tuple)):
        children = enumerate(value)
    for key, child in children:
        _refuse_paths(f"{where}.{key}", child)
