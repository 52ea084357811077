"""Soak the connector: a million requests with random delays and errors; no wrong row, no leak.

    python -m benchmarks.soak_connector --requests 1000000 --processes 2

Each process (`soak_lane.py`) makes a connector after another over models/tiny, on the host and on
disk, in a thread or a process of its own, with one to four slots and one or two layers. The reader
waits and fails at random, and so does the service; tickets are awaited in any order, canceled and
released early; twice a connector the service is held until a request times out. Every value of
every answer is compared, a failure must be NaN all over, and behind each connector descriptors,
threads and memory must be what they were, and every slot free.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import counts, machine

SOURCES = (
    "src/gramary/offload/*.py", "csrc/offload/*", "benchmarks/soak_connector.py",
    "benchmarks/soak_lane.py",
)  # fmt: skip


def soak(num_requests: int, num_processes: int, seed: int, requests_each: int) -> list[Any]:
    """Returns a run of each process, as a receipt has them."""
    share = -(-num_requests // num_processes)
    lanes = []
    for index in range(num_processes):
        plan = {"seed": seed + index, "num_requests": share, "requests_each": requests_each}
        command = [sys.executable, "-m", "benchmarks.soak_lane", json.dumps(plan)]
        lanes.append(subprocess.Popen(command, cwd=machine.ROOT, stdout=subprocess.PIPE, text=True))
    runs = []
    for index, lane in enumerate(lanes):
        said, _ = lane.communicate()
        if lane.returncode:
            run = {
                "parameters": {"seed": seed + index}, "seconds": 0.0, "counts": {"crashed": 1},
                "failures": [f"the process ended with code {lane.returncode}"],
            }  # fmt: skip
        else:
            run = json.loads(said)
        print(f"process {index}, {run['seconds']} s: {run['counts']}")
        runs.append({"name": f"soak, process {index}", **run})
    return runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Soaks, prints what came of it and writes the receipt; exits with 1 on a failure."""
    parser = counts.parser("benchmarks.soak_connector")
    parser.add_argument("--requests", type=int, default=1_000_000, help="requests in all")
    parser.add_argument("--processes", type=int, default=2, help="processes side by side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests-each", type=int, default=10_000, help="of one connector")
    parser.add_argument("--smoke", action="store_true", help="seconds; no receipt")
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(words)
    if options.smoke:
        options.requests, options.processes, options.requests_each = 1200, 1, 300
    plan = (options.requests, options.processes, options.seed, options.requests_each)
    passed = counts.write_counts(
        "soak_connector",
        SOURCES,
        ["python", "-m", "benchmarks.soak_connector", *words],
        lambda: soak(*plan),
        revision=options.revision,
        out=options.out,
        smoke=options.smoke,
    )
    sys.exit(not passed)


if __name__ == "__main__":
    main()
