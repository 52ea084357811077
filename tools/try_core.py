"""Loads the compiled core of an installed package, without the package and torch, and uses it.

    PYTHON tools/try_core.py FOLDER     the folder that gramary/ lies in

The standard library is all it needs, so any Python can run it. It compares the first row of every
token with the real configuration's published one on each instruction set that the kernel reports,
and provokes an error, whose C++ exception has to arrive as Python's.
"""

import array
import importlib.util
import platform
import re
import sys
from pathlib import Path
from types import ModuleType

TOKENS = [101, 202, 303, 248044, 404, 505]
FIRST_ROWS = [14526383, 9383917, 493037, 8565398, 9862760, 9342575]
MULTIPLIERS = [23703573157769, 20109073645365, 8052911324071]
VOCAB_SIZE, EOS_TOKEN_ID, NUM_HEADS = 248320, 248044, 2
WIDER = ({"avx2", "fma", "bmi2", "f16c"}, {"avx512f", "avx512bw", "avx512dq", "avx512vl"})
SIZES, OFFSETS = [20000003, 20000081], [0, 160000444]  # of the first bigram and trigram head


def load_core(folder: Path) -> ModuleType:
    """Returns the core, loaded from its file."""
    [path] = folder.glob("gramary/native/_core*.so")
    spec = importlib.util.spec_from_file_location("_core", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: this Python does not load files of that name")
    core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core


def reported_level() -> int:
    """Returns the widest instruction set of the core that the kernel reports: 0, 1 or 2."""
    line = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    level = 0
    if platform.machine() != "x86_64":
        return level
    while level < len(WIDER) and flags >= WIDER[level]:
        level += 1
    return level


def first_rows(core: ModuleType) -> list[int]:
    """Returns the row of every token in the first bigram head."""
    hasher = core.NgramHasher(VOCAB_SIZE, EOS_TOKEN_ID, MULTIPLIERS, SIZES, OFFSETS)
    tokens, starts = array.array("q", TOKENS), array.array("i", [0, len(TOKENS)])
    rows = array.array("q", [-1] * len(TOKENS) * NUM_HEADS)
    fault = hasher.ngram_ids(
        tokens.buffer_info()[0], True, len(tokens), starts.buffer_info()[0], 1, 0, False,
        rows.buffer_info()[0],
    )  # fmt: skip
    if fault:
        raise SystemExit(f"the core refuses the tokens: fault {fault}")
    return rows.tolist()[::NUM_HEADS]


def refusal(core: ModuleType) -> str:
    """Returns what the core says about an argument that is wrong."""
    try:
        core.RowService([], "seldom", 1)
    except ValueError as error:
        return str(error)
    raise SystemExit("the core took poll='seldom'")


def main() -> None:
    """Uses the core and says so; exits with 1 where a row is wrong."""
    core = load_core(Path(sys.argv[1]))
    levels = range(reported_level() + 1)
    if core.detected_simd_level() != levels[-1]:
        raise SystemExit(f"the core found level {core.detected_simd_level()}, not {levels[-1]}")
    for level in levels:
        core.set_simd_level(level)
        if first_rows(core) != FIRST_ROWS:
            raise SystemExit(f"level {level}: got {first_rows(core)}, expected {FIRST_ROWS}")
    version = ".".join(map(str, sys.version_info[:3]))
    print(f"Python {version}: rows are right on {len(levels)} instruction sets; {refusal(core)}")


if __name__ == "__main__":
    main()
