"""Type checkers see the types that README's examples need, in strict mode."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy comes with the extra check")
def test_mypy_accepts_the_examples_in_strict_mode(tmp_path: Path) -> None:
    """Under the project's settings, whose cache `make check` has filled by then."""
    page = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    files = [tmp_path / f"example_{i}.py" for i in range(len(blocks))]
    for file, block in zip(files, blocks, strict=True):
        # What mypy takes a name for shows whether it knows the type, or passes over it.
        names = [name for name in ("table", "connector", "layer") if f"as {name}:" in block]
        file.write_text(block + "".join(f"reveal_type({name})\n" for name in names))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *map(str, files)],
        cwd=REPOSITORY,
        env=os.environ | {"MYPYPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    revealed = set(re.findall(r'Revealed type is "([\w.]+)"', done.stdout))
    assert revealed == {
        "gramary.table.Table",
        "gramary.offload.connector.Connector",
        "gramary.layer.module.PLELayer",
    }
