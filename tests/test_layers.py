"""The layers point down: a file imports only lower layers or its own folder."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "gramary"

LAYERS = {
    "errors": 0,
    "arguments": 0,
    "process_events": 0,
    "native": 0,
    "lifetime": 0,
    "process_bound": 0,
    "foreign_files": 0,
    "foreign_folders": 0,
    "settings": 0,
    "stats": 0,
    "receipt_head": 0,
    "count_receipts": 0,
    "targets": 0,
    "receipts": 0,
    "cgroups": 0,
    "machine": 0,
    "page_cache": 0,
    "tracing": 0,
    "task_threads": 0,
    "primes": 1,
    "model_config": 1,
    "hashing": 1,
    "pipeline": 1,
    "codecs": 1,
    "placement_grammar": 1,
    "row_layout": 2,
    "row_stream": 2,
    "checkpoint": 2,
    "pack": 2,
    "source": 2,
    "shard_rows": 2,
    "ops": 2,
    "placement": 3,
    "loading": 3,
    "tiers": 3,
    "storage": 4,
    "row_store": 4,
    "reading": 4,
    "reopening": 4,
    "table": 4,
    "ple": 4,
    "slots": 4,
    "batch": 4,
    "metrics": 5,
    "offload": 5,
    "layer": 6,
    "integrations": 6,
    "cli": 6,
}


def imported_modules(path: Path) -> set[str]:
    """Returns the first component below `gramary` of every import in a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
            if node.module == "gramary":
                names = [f"gramary.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            pytest.fail(f"{path}: use absolute imports")
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("gramary.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_imports_point_down(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    assert own in LAYERS, f"{own} is in no layer; name it in docs/architecture.md and here"
    for module in imported_modules(path) - {own, "__version__"}:
        assert module in LAYERS, f"{path} imports gramary.{module}, which is in no layer"
        same_rank_module = LAYERS[module] == LAYERS[own]
        # Modules of one layer may use each other only in L0-L2, where order in the table decides.
        order = list(LAYERS)
        assert LAYERS[module] < LAYERS[own] or (
            same_rank_module and order.index(module) < order.index(own)
        ), f"{path} (layer {LAYERS[own]}) imports gramary.{module} (layer {LAYERS[module]})"
