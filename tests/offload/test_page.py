"""The code of docs/offload.md runs, on a small checkpoint."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "offload.md"


def test_the_page_runs(
    make_checkpoint: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(pieces) > 1
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "demo-model").symlink_to(make_checkpoint(codec="fp8"))
    monkeypatch.chdir(tmp_path)
    for code in pieces:
        exec(compile(code, str(PAGE), "exec"), {})
