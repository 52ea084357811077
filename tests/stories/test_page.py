"""docs/engines.md holds the text of examples/small_engine.py, all of it and in its order."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def code_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_the_page_explains_the_whole_engine() -> None:
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shown = [block for block in blocks if not block.startswith("# On a GPU")]
    engine = (ROOT / "examples" / "small_engine.py").read_text(encoding="utf-8")
    program = engine[engine.index("from __future__") :]
    assert code_lines("".join(shown)) == code_lines(program)
