"""Spans share a byte exactly when the bytes say so."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gramary.ple.memory import Span, overlaps, span_of


def spans(name: str) -> st.SearchStrategy[Span]:
    sizes = st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, 4), st.integers(0, 6))
    return sizes.map(lambda s: Span(name, s[0], s[1], s[2], s[2] + s[3]))


def bytes_of(span: Span) -> set[int]:
    return {
        span.start + row * span.stride + byte
        for row in range(span.num_rows)
        for byte in range(span.row_bytes)
    }


@given(a=spans("a"), b=spans("b"))
def test_overlaps(a: Span, b: Span) -> None:
    assert overlaps(a, b) == bool(bytes_of(a) & bytes_of(b))
    assert overlaps(b, a) == overlaps(a, b)


def test_spans_of_tensors() -> None:
    base = torch.zeros(10, 8, dtype=torch.int16)
    address = base.data_ptr()
    assert span_of("x", base) == Span("x", address, 1, 160, 160)
    assert span_of("x", base[2:5, 1:4]) == Span("x", address + 34, 3, 6, 16)
    assert span_of("x", base[0, 0]) == Span("x", address, 1, 2, 2)
    assert span_of("x", base[:0]).is_empty
