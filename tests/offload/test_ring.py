"""The shared memory: one layout on both sides, nothing overlaps."""

import itertools

import pytest

from gramary.errors import ArgumentError
from gramary.native.offload import RING_LAYOUT
from gramary.offload.memory import ring
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


def test_both_sides_have_one_layout() -> None:
    here = {
        "magic": ring.MAGIC,
        "version": ring.VERSION,
        "max_layers": ring.MAX_LAYERS,
        "region_header": ring.REGION_HEADER_BYTES,
        "slot_header": ring.SLOT_HEADER_BYTES,
        "input_header": ring.INPUT_HEADER_BYTES,
        "answer": ring.ANSWER_BYTES,
        **{
            name: getattr(ring, name.upper())
            for name in RING_LAYOUT
            if hasattr(ring, name.upper()) and name not in ("magic", "version", "max_layers")
        },
    }
    assert here == RING_LAYOUT


def test_nothing_overlaps() -> None:
    region = Ring(SHAPE)
    spans = [(0, ring.REGION_HEADER_BYTES)]
    for slot in (*region.host_slots, *region.stream_slots):
        spans.append((slot.header, ring.SLOT_HEADER_BYTES))
        for layer, (heads, row_bytes) in enumerate(
            zip(SHAPE.num_heads, SHAPE.row_bytes, strict=True)
        ):
            spans.append((slot.answers[layer], ring.ANSWER_BYTES))
            spans.append((slot.ids[layer], 5 * heads * 8))
            spans.append((slot.rows[layer], 5 * heads * row_bytes))
    for entry in region.inputs:
        spans.append((entry.header, ring.INPUT_HEADER_BYTES))
        spans.append((entry.tokens, 5 * 8))
        spans.append((entry.history, 3 * 2 * 8))
        spans.append((entry.starts, 4 * 4))
    spans.sort()
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
    assert spans[-1][0] + spans[-1][1] <= region.num_bytes
    assert all(place % ring.LINE == 0 for place, _ in spans)


def test_equal_shapes_give_equal_places() -> None:
    assert Ring(SHAPE).places() == Ring(SHAPE).places()


@pytest.mark.parametrize(
    "changes", [{"max_tokens": 0}, {"num_host_slots": 0}, {"num_heads": (), "row_bytes": ()}]
)
def test_impossible_shapes_are_refused(changes: dict[str, object]) -> None:
    import dataclasses

    with pytest.raises(ArgumentError):
        dataclasses.replace(SHAPE, **changes)  # type: ignore[arg-type]
