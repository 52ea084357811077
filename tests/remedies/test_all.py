"""Kind 16: whatever a message advises that has a name of ours was followed by some test.

A test that follows advice carries `@pytest.mark.remedy("words of the message", ...)`. Advice that
names a call, a variable, a command or an argument of the package needs one, or a line below that
says why it cannot be followed here.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import gramary

PACKAGE = Path(gramary.__file__).parent
TESTS = Path(__file__).parent.parent

# A call, a variable, a command, an argument or a class of ours, in what follows "; " or ": ".
NAMED = re.compile(
    r"[a-z_]+\(\)|GRAMARY_[A-Z_]+|TRITON_INTERPRET|`gramary |\bnum_slots\b|\bnum_shards\b"
    r"|\b[a-z_]+=(?!\{)|\bTable\.|\bConnector\b"
)
ADVICE = re.compile(
    r"(?:[;:.,] |\bor |\band )(?:give|let|load|call|use|set|raise|pass|take|run|read|note|release|"
    r"discard|move|wait|cancel|capture|build|make|open|request|begin|write|dequantise|needs|runs|"
    r"place|put|choose|ask|close)\b.*"
)

# What cannot be followed on a CPU of this machine, and why.
ELSEWHERE = {
    "capture a gramary.Connector's request and wait instead": "needs a CUDA graph: test_on_gpu.py",
    "capture a gramary.Connector's wait, or pass tensors": "needs a CUDA graph: test_on_gpu.py",
    "set GRAMARY_PIN_HOST=0 to let CPU threads": "needs CUDA: test_table_cuda.py",
    "set GRAMARY_NUM_THREADS before the process starts": "of a process: test_threads.py",
}


@functools.cache
def messages() -> tuple[tuple[str, str], ...]:
    """Returns (place, text) of every string of the package that is no docstring."""
    return tuple(read_messages())


def read_messages() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        docs = {
            id(node.value) for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }  # fmt: skip
        inner = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
            for part in node.values
        }  # fmt: skip
        for node in ast.walk(tree):
            if id(node) not in docs | inner and (text := text_of(node)):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text  # type: ignore[attr-defined]


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
            if isinstance(part, (ast.Constant, ast.FormattedValue))
        )
    return ""


def followed() -> dict[str, str]:
    """Returns the words that tests follow, and the test of each."""
    found = {}
    for path in TESTS.rglob("test_*.py"):
        if "pytest.mark.remedy" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.remedy":
                for word in node.args:
                    assert isinstance(word, ast.Constant)
                    found[str(word.value)] = f"{path.relative_to(TESTS)}:{node.lineno}"
    return found


def advice_in(text: str) -> str:
    """Returns what a message advises, where that names something of ours."""
    match = ADVICE.search(text)
    return match[0] if match and NAMED.search(re.sub(r"\{[^}]*\}", "", match[0])) else ""


def test_kind_16_advice_with_a_name_is_followed() -> None:
    known = {*followed(), *ELSEWHERE}
    missing = [
        f"{place}: {advice}"
        for place, text in messages()
        if (advice := advice_in(text))
        and not any(words in text for words in known)
        # Help of commands, settings and docstring-like tables advise nobody.
        and not place.startswith(("cli/", "settings.py", "placement_grammar.py"))
    ]
    assert not missing, "follow these in a test, or say in ELSEWHERE why not:\n" + "\n".join(
        missing
    )


def test_kind_16_what_is_followed_is_still_advised() -> None:
    known = {**followed(), **ELSEWHERE}
    assert len(known) > 50
    texts = [text for _, text in messages()]
    stale = {words: where for words, where in known.items() if not any(words in t for t in texts)}
    assert not stale


def test_kind_16_the_collector_sees_advice() -> None:
    """The example of the kind, and what is no advice."""
    assert advice_in("2 tickets were not awaited: wait for it, or call release_outputs()")
    assert advice_in("too little memory; set GRAMARY_MEMORY_LIMIT_BYTES")
    assert not advice_in("expected num_slots from 1 to 4, got 5")
