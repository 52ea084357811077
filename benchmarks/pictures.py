"""Pictures of receipts: time against batch size with the floor drawn in, and bytes per tier."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gramary.errors import DependencyError

TIERS = ("device", "host", "disk")
COLOURS = {"device": "#4c72b0", "host": "#dd8452", "disk": "#8c8c8c"}


def draw_receipt(receipt: Mapping[str, Any], path: Path) -> None:
    """Draws a receipt: tiers and rates where its cases place a table, else times.

    Args:
        receipt: a valid receipt of timed cases.
        path: picture to write; its suffix says in which format (.svg, .png, .pdf).

    Raises:
        DependencyError: matplotlib is missing.
    """
    pyplot = _import_pyplot()
    if all("tiers" in case["parameters"] and "new_tokens" in case["parameters"]
           for case in receipt["cases"]):  # fmt: skip
        figure = draw_tiers(pyplot, receipt)
    else:
        figure = draw_times(pyplot, receipt)
    # The same receipt gives the same bytes, and the picture says which receipt it is of.
    metadata = {"Date": None, "Description": signature(receipt)} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata)
    pyplot.close(figure)


def signature(receipt: Mapping[str, Any]) -> str:
    """Returns a line that names a receipt and its content."""
    digest = hashlib.sha256(json.dumps(receipt, sort_keys=True).encode()).hexdigest()
    return f"receipt {receipt['name']} {digest[:16]}"


def draw_times(pyplot: Any, receipt: Mapping[str, Any]) -> Any:
    """Returns a figure with a panel for each kind of case: median times by batch size.

    Cases that differ in nothing but a number in their name are one kind. Bands go from the 20th
    to the 80th percentile; the dashed line is the physical floor, where the receipt has one.
    """
    kinds: dict[str, list[Any]] = defaultdict(list)
    for case in receipt["cases"]:
        if case["unit"] == "us":
            kinds[_kind(case["name"])].append(case)
    kinds = {kind: sorted(cases, key=batch_size) for kind, cases in kinds.items()}
    panels = {kind: cases for kind, cases in kinds.items() if len(cases) > 1} or kinds
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.6 * len(panels), 3.8), squeeze=False, layout="constrained"
    )
    for axis, (kind, cases) in zip(axes[0], panels.items(), strict=True):
        _draw_panel(axis, kind, cases)
    axes[0][0].set_ylabel("microseconds")
    figure.suptitle(_describe(receipt), fontsize=8)
    return figure


def draw_tiers(pyplot: Any, receipt: Mapping[str, Any]) -> Any:
    """Returns a figure of placements: bytes in each tier, and tokens a second beside them."""
    bars = [
        (name, json.loads(case["parameters"]["tiers"])[name], summary, case)
        for case in receipt["cases"]
        for name, summary in case["candidates"].items()
    ]
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(9, 0.5 * len(bars) + 1.4), sharey=True, layout="constrained"
    )
    places = range(len(bars))
    for place, (_, tiers, _, _) in zip(places, bars, strict=True):
        begin = 0.0
        for tier in TIERS:
            size = tiers.get(tier, 0) / 2**20
            left.barh(place, size, left=begin, color=COLOURS[tier])
            begin += size
    rates = [case["parameters"]["new_tokens"] / summary["median"] * 1e6
             for _, _, summary, case in bars]  # fmt: skip
    right.barh(places, rates, color="#55a868")
    left.set_yticks(places, [name for name, _, _, _ in bars])
    left.invert_yaxis()
    left.set_xlabel("MiB of rows")
    right.set_xlabel("tokens a second")
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=COLOURS[tier]) for tier in TIERS]
    left.legend(handles, TIERS, fontsize=8)
    figure.suptitle(_describe(receipt), fontsize=8)
    return figure


def batch_size(case: Mapping[str, Any]) -> int:
    """Returns the tokens of a case, or the largest number in its name."""
    found = case["parameters"].get("num_tokens", case["parameters"].get("tokens"))
    numbers = [int(number) for number in re.findall(r"\d+", case["name"])]
    return int(found if found is not None else max(numbers, default=1))


def _kind(name: str) -> str:
    """Returns what is left of a case's name without its batch size."""
    words = re.sub(r"\d+ (tokens|requests?)", "", name).replace(", ,", ",")
    return re.sub(r"\s+", " ", words).strip(" ,") or "all"


def _draw_panel(axis: Any, kind: str, cases: list[Any]) -> None:
    sizes = [batch_size(case) for case in cases]
    names = [name for name in cases[0]["candidates"] if all(name in c["candidates"] for c in cases)]
    for name in names:
        summaries = [case["candidates"][name] for case in cases]
        (line,) = axis.plot(sizes, [s["median"] for s in summaries], marker="o", label=name)
        low, high = ([s[key] for s in summaries] for key in ("p20", "p80"))
        axis.fill_between(sizes, low, high, alpha=0.2, color=line.get_color())
    floors = [case["bytes"]["floor"] for case in cases]
    if all(floors):
        axis.plot(sizes, floors, "k--", linewidth=1, label="physical floor")
    axis.set(xscale="log", yscale="log", xlabel="tokens a batch", title=kind)
    axis.title.set_fontsize(9)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def _describe(receipt: Mapping[str, Any]) -> str:
    hardware = receipt["hardware"]
    machine = ", ".join(sorted({gpu["name"] for gpu in hardware["gpus"]})) or hardware["cpu"]
    return f"{receipt['name']} on {machine}, {receipt['taken_at'][:10]}"


def _import_pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise DependencyError("pictures need matplotlib: pip install 'gramary[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Text stays text, and identifiers in the file depend on its content alone.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gramary"})
    return pyplot
