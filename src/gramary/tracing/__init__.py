"""Spans: what was done when, for a trace file, a picture, and profilers that know NVTX."""

from gramary.tracing.chrome import write_trace
from gramary.tracing.spans import NOTHING, SPAN_NAMES, Span, SpanLog

__all__ = ["NOTHING", "SPAN_NAMES", "Span", "SpanLog", "write_trace"]
