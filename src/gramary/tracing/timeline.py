"""A picture of spans: a panel for each run, a line for each track. Needs matplotlib."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gramary.errors import DependencyError
from gramary.tracing.spans import SPAN_NAMES, Span

# These names have these colours in every picture; others have greys, in alphabetical order.
COLOURS = dict(
    zip(
        SPAN_NAMES,
        ("#7f6a93", "#c0a36e", "#b0b0b0", "#4c9f70", "#2f6f8f", "#1b4332", "#d1495b", "#edae49",
         "#9d9d9d"),
        strict=True,
    )
)  # fmt: skip
OTHER_COLOURS = ("#c3ccd9", "#dfe4ea", "#a9b5c6")


def draw_timeline(
    path: str | os.PathLike[str], groups: Mapping[str, Sequence[Span]], *, title: str
) -> None:
    """Draws spans of several runs, one below the other, on one scale of milliseconds.

    Args:
        path: the picture; its ending chooses the format (.svg, .png, .pdf).
        groups: spans by the run they are shown under; each run begins at its first span.
        title: what it is a picture of.

    Raises:
        DependencyError: matplotlib is missing.
        OSError: the file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError("pictures need matplotlib: pip install 'gramary[plot]'") from error
    colours = colours_of(span.name for spans in groups.values() for span in spans)
    heights = [len(tracks_of(spans)) + 1 for spans in groups.values()]
    # Equal spans give equal bytes, and text stays text, whatever the process has set.
    with rc_context({"svg.hashsalt": "gramary", "svg.fonttype": "none"}):
        figure = Figure(figsize=(11, 1.2 + 0.42 * sum(heights)), layout="constrained")
        figure.suptitle(title)
        panels = figure.subplots(
            len(groups), 1, sharex=True, squeeze=False, height_ratios=heights
        ).flatten()
        for panel, (heading, spans) in zip(panels, groups.items(), strict=True):
            _draw_run(panel, heading, spans, colours)
        panels[-1].set_xlabel("ms since the run began")
        _add_legend(figure, colours)
        is_svg = os.fspath(path).endswith(".svg")
        figure.savefig(path, metadata={"Date": None} if is_svg else None)


def tracks_of(spans: Sequence[Span]) -> list[str]:
    """Returns the tracks in the order in which they appear."""
    return list(dict.fromkeys(span.track for span in spans))


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """Returns a colour for each of these names, the fixed ones first."""
    seen = set(names)
    others = zip(sorted(seen - set(COLOURS)), itertools.cycle(OTHER_COLOURS), strict=False)
    return {name: colour for name, colour in COLOURS.items() if name in seen} | dict(others)


def _draw_run(panel: Any, heading: str, spans: Sequence[Span], colours: dict[str, str]) -> None:
    tracks = tracks_of(spans)
    start_ns = min((span.begin_ns for span in spans), default=0)
    for row, track in enumerate(tracks):
        own = [span for span in spans if span.track == track]
        # Long spans first, so that those within them are seen.
        for span in sorted(own, key=lambda span: span.begin_ns - span.end_ns):
            left = (span.begin_ns - start_ns) / 1e6
            width = (span.end_ns - span.begin_ns) / 1e6
            panel.broken_barh([(left, width)], (row - 0.4, 0.8), facecolors=colours[span.name])
    panel.set_yticks(range(len(tracks)), tracks)
    panel.set_ylim(len(tracks) - 0.4, -0.6)
    panel.set_title(heading, loc="left", fontsize="medium")
    panel.spines[["top", "right"]].set_visible(False)


def _add_legend(figure: Any, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)


__all__ = ["COLOURS", "colours_of", "draw_timeline", "tracks_of"]
