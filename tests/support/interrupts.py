"""Raising KeyboardInterrupt at every place of a call where one may strike.

CPython looks for signals and asynchronous exceptions at the beginning of functions, behind calls of
what is compiled, and where loops jump back. Those places are taken here, and beside them the
beginning of every line. Left out are the end of a `with` block and a `try:`, which a trace function
sees as lines of their own: nothing is looked for there, and raising there would skip `__exit__` or
the handler, which no interrupt does.

Source: CHECK_EVAL_BREAKER in Python/ceval.c of CPython 3.11.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import inspect
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gramary

# The package's own lines, and those of the standard library that it runs between them.
FILES = tuple(
    [str(Path(gramary.__file__).parent)]
    + [module.__file__ or "" for module in (contextlib, threading, weakref)]
)

GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@functools.cache
def is_traced(path: str, within: tuple[str, ...]) -> bool:
    """Returns whether lines of a file are places: of the package, or of these parts of it."""
    return path.startswith(FILES) and (not within or any(part in path for part in within))


class Places:
    """The places of one code object: offsets of instructions before which one may strike."""

    def __init__(self, code: CodeType) -> None:
        instructions = list(dis.get_instructions(code))
        self._index = {instruction.offset: i for i, instruction in enumerate(instructions)}
        self._instructions = instructions
        self._handlers = dis.Bytecode(code).exception_entries

    def is_no_line(self, offset: int) -> bool:
        """Returns whether a line begins there at which nothing can strike.

        Where a `with` block is left, three Nones for `__exit__` come next.
        """
        i = self._index[offset]
        if self._instructions[i].opname == "NOP":
            # A line with `try:` and nothing else, which no handler covers yet.
            return True
        while (name := self._instructions[i].opname) in ("SWAP", "NOP", "POP_TOP", "JUMP_FORWARD"):
            is_jump = name == "JUMP_FORWARD"
            i = self._index[self._instructions[i].argval] if is_jump else i + 1
        nones = self._instructions[i : i + 3]
        return len(nones) == 3 and all(
            each.opname == "LOAD_CONST" and each.argval is None for each in nones
        )

    def is_behind_call(self, before: int | None, offset: int, is_inlined: bool) -> bool:
        """Returns whether the instruction before, where the frame was, looks for interrupts."""
        if before is None or before not in self._index:
            return False
        name = self._instructions[self._index[before]].opname
        looks = name.startswith(("CALL", "JUMP_BACKWARD"))
        looks = looks and not (is_inlined and name == "CALL")
        return looks and self._handler(before) == self._handler(offset)

    def _handler(self, offset: int) -> int:
        targets = [e.target for e in self._handlers if e.start <= offset < e.end]
        return targets[-1] if targets else -1


places_of = functools.cache(Places)


class Interruption:
    """Traces a call and raises at one of its places.

    Args:
        place: which, from 0.
        within: parts of the paths of files whose lines count; none: all.

    Attributes:
        has_struck: whether the place was reached.
        where: file and line of it.
    """

    def __init__(self, place: int, within: tuple[str, ...] = ()) -> None:
        self._within = within
        self._left = place
        self._before: dict[FrameType, int] = {}
        # Frames that called a function of Python: its return is no place.
        self._inlined: set[FrameType] = set()
        self._finalizing: FrameType | None = None
        self.has_struck = False
        self.where = ""

    def run(self, call: Callable[[], object]) -> None:
        """Makes the call; raises KeyboardInterrupt at the place, if it comes there."""
        outer = sys.gettrace()
        # No context manager: its own lines would be places.
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(outer)
            self._before.clear()
            self._inlined.clear()

    def _enter(self, frame: FrameType, event: str, _argument: object) -> Any:
        code = frame.f_code
        if self._finalizing is not None:
            return None
        if code is weakref.finalize.__call__.__code__:
            # What is raised there goes to `sys.unraisablehook`, whoever is running.
            self._finalizing = frame
            return self._end_finalizing
        # A class and a generator are compiled, whatever they run.
        is_plain = code.co_name not in ("__init__", "__new__") and not code.co_flags & GENERATOR
        if event == "call" and frame.f_back is not None and is_plain:
            self._inlined.add(frame.f_back)
        if event != "call" or not is_traced(code.co_filename, self._within):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _end_finalizing(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "return" and frame is self._finalizing:
            self._finalizing = None
        return self._end_finalizing

    def _step(self, frame: FrameType, event: str, _argument: object) -> Any:
        offset = frame.f_lasti
        if event == "return":
            self._before.pop(frame, None)
        elif event in ("line", "opcode"):
            places = places_of(frame.f_code)
            is_place = (
                not places.is_no_line(offset)
                if event == "line"
                else places.is_behind_call(self._before.get(frame), offset, frame in self._inlined)
            )
            if event == "opcode":
                self._before[frame] = offset
                self._inlined.discard(frame)
            if is_place:
                self._left -= 1
                if self._left < 0:
                    self.has_struck = True
                    self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    raise KeyboardInterrupt
        return self._step


def interrupt_everywhere(
    call: Callable[[], object],
    check: Callable[[], object],
    *,
    before: Callable[[], object] = lambda: None,
    every: int = 1,
    within: tuple[str, ...] = (),
    is_handled: bool = True,
) -> int:
    """Interrupts a call at each of its places in turn, and has checked after each what is left.

    Args:
        call: what is interrupted.
        check: called behind it; raises where something is lost.
        before: called before each.
        every: takes each n-th place only, for calls that cost much.
        within: as for `Interruption`.
        is_handled: whether the exception is gone before the check; if not, its frames still hold
            what they held.

    Returns:
        How many places there were.
    """
    place = 0
    while True:
        before()
        interruption = Interruption(place, within)
        try:
            interruption.run(call)
        except KeyboardInterrupt:
            assert interruption.has_struck, "an interrupt from elsewhere"
            if not is_handled:
                _check(check, interruption, place)
        if is_handled or not interruption.has_struck:
            _check(check, interruption, place)
        if not interruption.has_struck:
            return place // every
        place += every


def _check(check: Callable[[], object], interruption: Interruption, place: int) -> None:
    try:
        check()
    except BaseException as error:
        error.add_note(f"interrupted at place {place}, {interruption.where}")
        raise


def require_held(before: tuple[Counter[str], int, int]) -> None:
    """Fails where a process holds something else than before, garbage aside."""
    if held_by_process() != before:
        # Slow, and mostly not needed.
        gc.collect()
    assert held_by_process() == before


def held_by_process() -> tuple[Counter[str], int, int]:
    """Returns what a process holds: targets of descriptors, threads, and mappings of our memory."""
    targets: Counter[str] = Counter()
    for path in Path("/proc/self/fd").iterdir():
        # The descriptor of the folder itself is gone by now.
        with contextlib.suppress(FileNotFoundError):
            targets[str(path.readlink())] += 1
    maps = Path("/proc/self/maps").read_text()
    return targets, len(list(Path("/proc/self/task").iterdir())), maps.count("gramary")


__all__ = ["Interruption", "held_by_process", "interrupt_everywhere", "require_held"]
