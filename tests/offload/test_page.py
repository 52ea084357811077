"""The code of docs/offload.md runs, from the source tree on."""

import re
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
PAGE = TREE / "docs" / "offload.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(pieces) > 1
    # What the code writes stays out of the tree.
    (tmp_path / "models").symlink_to(TREE / "models")
    monkeypatch.chdir(tmp_path)
    for code in pieces:
        exec(compile(code, str(PAGE), "exec"), {})
