"""Peak resident memory of a function, measured in a child process of its own.

`python -m benchmarks.peak module:function '{"argument": 1}'` imports the module, notes the resident
memory, calls the function and prints the growth of the process's high-water mark in bytes.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def read_status_bytes(field: str) -> int:
    """Returns a memory field of this process's status page (VmRSS, VmHWM) in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no field {field}")


def reset_peak() -> None:
    """Sets the high-water mark back to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def measure_peak_bytes(target: str, **arguments: Any) -> int:
    """Returns how far a call raises a fresh process's peak resident memory, in bytes.

    Args:
        target: "module:function", importable from the repository's root.
        **arguments: JSON values that the function is called with.

    Raises:
        RuntimeError: the child failed; holds what it printed.
    """
    command = [sys.executable, "-m", "benchmarks.peak", target, json.dumps(arguments)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if child.returncode:
        raise RuntimeError(f"{target} failed in a child process:\n{child.stderr}")
    return int(child.stdout.split()[-1])


def touch_bytes(num_bytes: int) -> None:
    """Touches memory and lets it go: the smallest target, which tests this module."""
    memory = bytearray(num_bytes)
    memory[:: 1 << 12] = b"x" * len(memory[:: 1 << 12])


def main() -> None:
    """Runs one target named on the command line and prints its growth."""
    module_name, _, function_name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module_name), function_name)
    arguments = json.loads(sys.argv[2])
    reset_peak()
    before = read_status_bytes("VmRSS")
    kept = function(**arguments)
    print(read_status_bytes("VmHWM") - before)
    del kept


if __name__ == "__main__":
    main()
