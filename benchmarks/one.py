"""One benchmark with the options of `gramary bench`: `python -m benchmarks.one NAME --plot ...`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, peers
from benchmarks.harness import Benchmark
from benchmarks.receipts import schema as receipts

# Exit code of a benchmark in which the peer that was asked for takes no part.
NOTHING_TO_COMPARE = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a benchmark, writes the receipt and the picture that are asked for."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="benchmarks.one")
    parser.add_argument("name")
    parser.add_argument("--against", choices=sorted(peers.PEERS))
    parser.add_argument("--json", type=Path, help="receipt to write")
    parser.add_argument("--plot", type=Path, help="picture to draw")
    parser.add_argument("--smoke", action="store_true")
    options, rest = parser.parse_known_args(words)
    module = importlib.import_module(f"benchmarks.{options.name}")
    draws_itself = hasattr(module, "make_benchmark") and "--plot" in module.parser().format_usage()
    if draws_itself and options.plot:
        rest += ["--plot", str(options.plot)]
    benchmark = _make(module, rest, parser)
    if options.against:
        benchmark = peers.against(benchmark, options.against)
    if not benchmark.can_run():
        parser.exit(3, f"{options.name}: needs {benchmark.needs}, which is not here\n")
    try:
        with harness.told_in_words(parser):
            receipt = harness.run(
                benchmark, smoke=options.smoke, command=["python", "-m", "benchmarks.one", *words]
            )
    except receipts.ReceiptError as error:
        if options.against and "cases" in str(error):
            note = f"{options.name}: has nothing against {options.against} here\n"
            parser.exit(NOTHING_TO_COMPARE, note)
        raise
    if options.json:
        receipts.write(receipt, options.json)
        print(f"receipt: {options.json}")
    if options.plot and not draws_itself:
        from benchmarks.pictures import draw_receipt

        draw_receipt(receipt, options.plot)
        print(f"picture: {options.plot}")


def _make(module: Any, rest: list[str], parser: argparse.ArgumentParser) -> Benchmark:
    if hasattr(module, "make_benchmark"):
        return module.make_benchmark(module.parser().parse_args(rest))
    if rest:
        parser.error(f"{module.__name__} has no option {rest[0]}")
    return module.BENCHMARK


if __name__ == "__main__":
    main()
