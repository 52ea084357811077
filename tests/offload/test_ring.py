"""The shared memory: one layout, the core's; nothing overlaps; sizes may be anybody's."""

import dataclasses
import itertools

import pytest

from gramary.errors import ArgumentError, CapacityError
from gramary.native.ring import RegionLayout, RingFields
from gramary.offload.memory.ring import Ring, RingShape

SHAPE = RingShape(
    max_tokens=5,
    max_requests=3,
    history_length=2,
    num_heads=(16, 4),
    row_bytes=(90, 32),
    num_host_slots=3,
    num_stream_slots=2,
    num_inputs=7,
)


def spans_of(layout: Ring) -> list[tuple[int, int]]:
    """Returns offset and bytes of everything in a region."""
    spans = [(0, RingFields.REGION_HEADER_BYTES)]
    for slot in (*layout.host_slots, *layout.stream_slots):
        spans.append((slot.header, RingFields.SLOT_HEADER_BYTES))
        for table_index, (heads, row_bytes) in enumerate(
            zip(SHAPE.num_heads, SHAPE.row_bytes, strict=True)
        ):
            spans.append((slot.answers[table_index], RingFields.ANSWER_BYTES))
            spans.append((slot.ids[table_index], 5 * heads * 8))
            spans.append((slot.rows[table_index], 5 * heads * row_bytes))
    for entry in layout.inputs:
        spans.append((entry.header, RingFields.INPUT_HEADER_BYTES))
        spans.append((entry.tokens, 5 * 8))
        spans.append((entry.history, 3 * 2 * 8))
        spans.append((entry.starts, 4 * 4))
    return sorted(spans)


def test_nothing_overlaps() -> None:
    layout = Ring(SHAPE)
    spans = spans_of(layout)
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
    assert spans[-1][0] + spans[-1][1] <= layout.num_bytes
    assert all(place % RingFields.LINE == 0 for place, _ in spans)


def test_state_words_lie_inside_their_headers() -> None:
    layout = Ring(SHAPE)
    for slot in (*layout.host_slots, *layout.stream_slots):
        assert slot.states == slot.header + RingFields.SLOT_STATES
    for entry in layout.inputs:
        assert entry.states == entry.header + RingFields.INPUT_STATES
    words = 8 * RingFields.MAX_TABLES
    assert RingFields.SLOT_STATES + words <= RingFields.SLOT_HEADER_BYTES
    assert RingFields.INPUT_STATES + words <= RingFields.INPUT_HEADER_BYTES


def test_equal_shapes_give_equal_places() -> None:
    assert spans_of(Ring(SHAPE)) == spans_of(Ring(SHAPE))


@pytest.mark.parametrize(
    "changes", [{"max_tokens": 0}, {"num_host_slots": 0}, {"num_heads": (), "row_bytes": ()}]
)
def test_impossible_shapes_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ArgumentError):
        dataclasses.replace(SHAPE, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sizes of a region"):
        RegionLayout(**(dataclasses.asdict(SHAPE) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 1 << 62},
        {"max_tokens": 1 << 40, "row_bytes": (1 << 40, 1)},
        {"history_length": 1 << 62},
    ],
)
def test_sizes_that_wrap_around_are_refused(changes: dict[str, object]) -> None:
    """A worker lays out what an engine describes: a size that wraps would place rows beside it."""
    with pytest.raises(CapacityError, match="ask for less"):
        Ring(dataclasses.replace(SHAPE, **changes))  # type: ignore[arg-type]
