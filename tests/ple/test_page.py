"""The code of docs/state.md runs, in one go."""

import re
from pathlib import Path
from typing import Any

import torch

from gramary.ops.gate_conv import EXPORT_ORDER

PAGE = Path(__file__).parents[2] / "docs" / "state.md"


def test_the_code_of_the_page() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    names["pool"].check_integrity()
    assert not torch.isnan(names["residual"]).any()


def test_the_statuses_of_the_page() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` (\d) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(name, int(number)) for name, number in rows] == [
        (status.name, int(status)) for status in EXPORT_ORDER
    ]
