"""Runs the core's threads under sanitizers: python -m tools.sanitize_threads [SANITIZER ...]

The program of tests/native/threads, which needs no Python, works the thread pools, the disk reader
with its file watch, and the row service from several threads, and checks what they give. It is
built in build/threads-* with ThreadSanitizer, then with AddressSanitizer and
UndefinedBehaviorSanitizer together; each is a word for -fsanitize, and words choose. The first
report fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "native" / "threads"
SANITIZERS = ("thread", "address,undefined")
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
TIMEOUT_S = 600


def build(sanitizer: str) -> Path:
    """Builds the program with a sanitizer; returns its path."""
    folder = ROOT / "build" / f"threads-{sanitizer.replace(',', '-')}"
    # The environment's own cmake and ninja come first.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    cmake = shutil.which("cmake", path=path)
    if cmake is None:
        raise SystemExit("cmake is missing: run `make sanitize`, which installs it")
    variables = os.environ | {"PATH": path}
    configure = [cmake, "-S", str(PROGRAM), "-B", str(folder), "-G", "Ninja",
                 f"-DSANITIZER={sanitizer}"]  # fmt: skip
    subprocess.run(configure, env=variables, stdout=subprocess.DEVNULL, check=True)
    subprocess.run([cmake, "--build", str(folder)], env=variables, check=True)
    return folder / "threads"


def main() -> int:
    """Builds and runs the program with each sanitizer; returns 1 where one reports anything."""
    failed = []
    for sanitizer in sys.argv[1:] or SANITIZERS:
        print(f"== -fsanitize={sanitizer}", flush=True)
        program = build(sanitizer)
        done = subprocess.run(
            [str(program)], env=os.environ | OPTIONS, timeout=TIMEOUT_S, check=False
        )
        if done.returncode:
            failed.append(sanitizer)
    for sanitizer in failed:
        print(f"failed: -fsanitize={sanitizer}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
