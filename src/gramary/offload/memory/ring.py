"""The memory that an engine and its row service share: where everything in it lies.

The structures are those of csrc/offload/ring.hpp, which also tells the life of a request. This
module alone decides where each of them is put; engine, worker and core all take it from here.
"""

from __future__ import annotations

import dataclasses
import enum
import struct

from gramary.arguments import require_integer
from gramary.errors import ArgumentError
from gramary.native.offload import RegionPlaces

MAGIC = 0x474E495259524D47
VERSION = 3
MAX_LAYERS = 8

LINE = 64
PAGE = 4096

# Fields of the structures, as byte offsets from their start.
HOST_NUMBER, STOP, SERVICE_STATE, SERVICE_PID = 64, 72, 128, 132
COUNTERS = 192

SLOT_NUMBER, SLOT_NUM_TOKENS, RELEASED, DONE, SLOT_STATES = 0, 8, 64, 128, 192
INPUT_NUMBER, INPUT_NUM_TOKENS, INPUT_NUM_REQUESTS, INPUT_HAS_HISTORY = 0, 8, 16, 24
INPUT_CLAIM, INPUT_STATES = 64, 128
ANSWER_NUMBER, ANSWER_FAILURE, ANSWER_ERROR, ANSWER_FILE = 0, 8, 12, 16
ANSWER_PROGRESS, ANSWER_OFFSET = 20, 24
READY = 64

REGION_HEADER_BYTES = 5 * LINE
SLOT_HEADER_BYTES = 4 * LINE
INPUT_HEADER_BYTES = 3 * LINE
ANSWER_BYTES = 2 * LINE

# Parts of a request's rows that progress is told by.
PARTS = 8

_HEADER = struct.Struct("<QIIQ")

# What the service counts, in the order of its words.
COUNTER_NAMES = (
    "host_requests",
    "stream_requests",
    "rows",
    "failures",
    "late_answers",
    "waiting_ns",
    "gathering_ns",
    "host_rows",
    "host_bytes",
    "disk_rows",
    "disk_bytes",
    "dropped_spans",
)


class ServiceState(enum.IntEnum):
    """What has become of the service of a region."""

    STARTING = 0
    RUNNING = 1
    STOPPED = 2


class Phase(enum.IntEnum):
    """What has become of a request, or of its inputs, in the low bits of a word."""

    IDLE = 0
    REQUESTED = 1
    PUBLISHED = 2
    FAILED = 3
    ABANDONED = 4
    CLAIMED = 5


# A state word is a number times this, and a phase.
NUM_PHASES = 8


class Failure(enum.IntEnum):
    """Why a layer's rows could not be had."""

    NONE = 0
    READ = 1
    CHECKSUM = 2
    TOKEN = 3
    ROW_ID = 4
    INPUTS = 5
    UNKNOWN = -1

    @classmethod
    def _missing_(cls, value: object) -> Failure:
        """Returns what stands for a word that no service wrote."""
        del value
        return cls.UNKNOWN


def state_of(number: int, phase: Phase) -> int:
    """Returns the state word of a request."""
    return number * NUM_PHASES + phase


def progress_of(number: int, part: int) -> int:
    """Returns the progress word of a request whose rows' first `part` eighths are in place."""
    return (number * PARTS + part) & 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class RingShape:
    """Sizes of a region.

    Attributes:
        max_tokens: most tokens of a batch.
        max_requests: most requests of a host-lane batch.
        history_length: the widest layer's ngram_size - 1.
        num_heads: heads of each layer.
        row_bytes: bytes of an encoded row of each layer.
        num_host_slots: results of the host lane under way at once.
        num_stream_slots: streams of the stream lane.
        num_inputs: host-lane batches whose inputs are kept at once.

    Raises:
        ArgumentError: a size is out of its range.
    """

    max_tokens: int
    max_requests: int
    history_length: int
    num_heads: tuple[int, ...]
    row_bytes: tuple[int, ...]
    num_host_slots: int
    num_stream_slots: int
    num_inputs: int

    def __post_init__(self) -> None:
        for name in (
            "max_tokens", "max_requests", "history_length", "num_host_slots", "num_inputs"
        ):  # fmt: skip
            require_integer(name, getattr(self, name), 1)
        require_integer("num_stream_slots", self.num_stream_slots, 0)
        if not 1 <= len(self.num_heads) <= MAX_LAYERS or len(self.num_heads) != len(self.row_bytes):
            raise ArgumentError(f"tables: expected 1 to {MAX_LAYERS}, got {len(self.num_heads)}")
        for heads, row_bytes in zip(self.num_heads, self.row_bytes, strict=True):
            require_integer("num_heads", heads, 1)
            require_integer("row_bytes", row_bytes, 1)

    @property
    def num_layers(self) -> int:
        """Layers whose rows one request fetches."""
        return len(self.num_heads)


@dataclasses.dataclass(frozen=True)
class SlotPlaces:
    """Where one slot's parts lie, as byte offsets: its header, and a layer's parts each."""

    header: int
    answers: tuple[int, ...]
    ids: tuple[int, ...]
    rows: tuple[int, ...]

    def flat(self) -> tuple[int, ...]:
        """Returns the places in the order that the core takes them."""
        layers = zip(self.answers, self.ids, self.rows, strict=True)
        return (self.header, *(place for layer in layers for place in layer))


@dataclasses.dataclass(frozen=True)
class InputPlaces:
    """Where one entry of host-lane inputs lies, as byte offsets."""

    header: int
    tokens: int
    history: int
    starts: int


class Ring:
    """The places of everything in a region of one shape; equal for equal shapes.

    Attributes:
        shape: the sizes it was laid out for.
        host_slots, stream_slots: places of the slots.
        inputs: places of the host lane's inputs.
        num_bytes: bytes of the whole region.
    """

    def __init__(self, shape: RingShape) -> None:
        self.shape = shape
        self._end = REGION_HEADER_BYTES
        self.host_slots = tuple(self._place_slot() for _ in range(shape.num_host_slots))
        self.stream_slots = tuple(self._place_slot() for _ in range(shape.num_stream_slots))
        self.inputs = tuple(self._place_input() for _ in range(shape.num_inputs))
        self.num_bytes = self._take(0, PAGE)

    def places(self) -> RegionPlaces:
        """Returns the places as the core takes them."""
        return RegionPlaces(
            tuple(slot.flat() for slot in self.host_slots),
            tuple(slot.flat() for slot in self.stream_slots),
            tuple((i.header, i.tokens, i.history, i.starts) for i in self.inputs),
            self.shape.max_tokens,
            self.shape.max_requests,
            self.shape.history_length,
        )

    def header(self) -> bytes:
        """Returns the first bytes of the region, which tell what it is."""
        return _HEADER.pack(MAGIC, VERSION, self.shape.num_layers, self.num_bytes)

    def host_slot(self, number: int) -> SlotPlaces:
        """Returns the slot of a host-lane request, numbered from 1."""
        return self.host_slots[(number - 1) % len(self.host_slots)]

    def input(self, number: int) -> InputPlaces:
        """Returns the inputs of a host-lane request, numbered from 1."""
        return self.inputs[(number - 1) % len(self.inputs)]

    def _take(self, num_bytes: int, alignment: int = LINE) -> int:
        place = -(-self._end // alignment) * alignment
        self._end = place + num_bytes
        return place

    def _place_slot(self) -> SlotPlaces:
        shape = self.shape
        header = self._take(SLOT_HEADER_BYTES)
        answers = tuple(self._take(ANSWER_BYTES) for _ in range(shape.num_layers))
        ids, rows = [], []
        for heads, row_bytes in zip(shape.num_heads, shape.row_bytes, strict=True):
            ids.append(self._take(8 * shape.max_tokens * heads, PAGE))
            rows.append(self._take(shape.max_tokens * heads * row_bytes, PAGE))
        return SlotPlaces(header, answers, tuple(ids), tuple(rows))

    def _place_input(self) -> InputPlaces:
        shape = self.shape
        return InputPlaces(
            self._take(INPUT_HEADER_BYTES),
            self._take(8 * shape.max_tokens),
            self._take(8 * shape.max_requests * shape.history_length),
            self._take(4 * (shape.max_requests + 1)),
        )


__all__ = [
    "Failure",
    "InputPlaces",
    "Phase",
    "Ring",
    "RingShape",
    "ServiceState",
    "SlotPlaces",
    "progress_of",
    "state_of",
]
