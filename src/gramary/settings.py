"""Frozen settings; the only module that reads or sets environment variables.

Every variable is listed once, in `ENVIRONMENT`, with its field, range and meaning; the settings
table of the documentation is this table.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gramary.arguments import require_type
from gramary.errors import SettingsError

GIB = 1 << 30
# What asks for gramary where the arguments of vLLM cannot be changed.
VLLM_PLACEMENT = "GRAMARY_PLACEMENT"
_VLLM_CHILD = "GRAMARY_VLLM_CHILD"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options of one table, connector or run; later changes of the environment do not touch it.

    Attributes:
        num_threads: threads of the native core, the caller included; 0 is one a usable CPU.
        instructions: the widest CPU instructions that the native core may use: "auto", "avx512",
            "avx2" or "scalar"; it caps them for the whole process, and the lowest cap holds.
        check_ids: on CUDA, synchronise and raise at once for wrong tokens or row ids.
        debug_checks: check rules that only a caller's bug can break, at the price of time.
        memory_limit_bytes: host memory to plan with instead of what the machine reports; None
            asks the machine.
        local_ranks: processes of this job on this machine; they share its memory.
        vram_reserve_gib: device memory left free by `device=auto` in GiB; None is 8 % of the
            device, at most 4 GiB.
        host_gib: with `device=auto,host`, host GiB the table may take; None sets no bound.
        disk_reader: how disk rows are read: "auto", "io_uring", "pread" or "mmap".
        direct_io: whether large cold batches may bypass the page cache.
        mmap_budget_mib: resident size that `disk_reader="mmap"` keeps its mappings under, in MiB.
        huge_pages: take huge pages for host rows where they can be had.
        share_folder: folder of a tmpfs in which `share=` keeps rows.
        pin_host: register a host tier with CUDA so that the GPU can read it.
        host_gather_rows: rows a batch from which CPU threads gather host rows for a GPU, where
            the ids are on the host; None measures it at open.
        force_doorbell: ring the worker even where the GPU could read the rows itself.
        poll: how a worker waits: "adaptive" (spin, then sleep in steps), "spin" or "sleep".
        request_timeout_s: seconds after which a request for rows is given up.

    Raises:
        SettingsError: a value is out of its range.
    """

    num_threads: int = 0
    instructions: str = "auto"
    check_ids: bool = False
    debug_checks: bool = False
    memory_limit_bytes: int | None = None
    local_ranks: int = 1
    vram_reserve_gib: float | None = None
    host_gib: float | None = None
    disk_reader: str = "auto"
    direct_io: bool = True
    mmap_budget_mib: int = 256
    huge_pages: bool = True
    share_folder: str = "/dev/shm"
    pin_host: bool = True
    host_gather_rows: int | None = None
    force_doorbell: bool = False
    poll: str = "adaptive"
    request_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for variable in ENVIRONMENT:
            value = getattr(self, variable.field)
            if not variable.accepts(value):
                raise SettingsError(
                    f"settings.{variable.field}: expected {variable.expected}, got {value!r}"
                )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Returns the settings of the environment, with `overrides` taking precedence.

        Args:
            environ: variables to read; None is the process's environment.
            **overrides: fields of this class that win over the environment.

        Raises:
            SettingsError: a variable does not parse or is out of range; the message names it.
        """
        source = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        for variable in ENVIRONMENT:
            text = source.get(variable.name)
            if text is not None and text.strip() and variable.field not in overrides:
                values[variable.field] = variable.read(text.strip())
        return cls(**values, **overrides)


def chosen_settings(settings: Settings | None) -> Settings:
    """Returns the caller's settings, or those of the environment for None.

    Raises:
        ArgumentError: they are none.
        SettingsError: as `Settings.from_env`.
    """
    if settings is None:
        return Settings.from_env()
    require_type("settings", settings, Settings)
    return settings


def inherited_environment(names: Iterable[str]) -> dict[str, str]:
    """Returns those of the named variables that are set, as they are, for a child process."""
    return {name: os.environ[name] for name in names if name in os.environ}


def environment_with(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns all variables of this process and some more, for a child process."""
    return {**os.environ, **variables}


def set_for_libraries(variables: Mapping[str, str]) -> None:
    """Sets variables that other libraries read when they are imported; gramary reads none."""
    os.environ.update(variables)


def placement_for_vllm() -> str | None:
    """Returns the placement that GRAMARY_PLACEMENT asks vLLM's engines for; None without."""
    return os.environ.get(VLLM_PLACEMENT, "").strip() or None


def mark_vllm_children() -> None:
    """Has the processes that this one starts from here on prepare a vLLM engine with gramary."""
    os.environ[_VLLM_CHILD] = "1"


def in_vllm_child() -> bool:
    """Returns whether an engine with gramary started this process."""
    return _VLLM_CHILD in os.environ


@dataclasses.dataclass(frozen=True)
class Variable:
    """One environment variable: its name, the field it sets, its range in words and in code."""

    name: str
    field: str
    expected: str
    meaning: str
    parse: Callable[[str], Any]
    accepts: Callable[[Any], bool]

    def read(self, text: str) -> Any:
        """Returns the parsed value of `text`, or raises SettingsError naming the variable."""
        try:
            value = self.parse(text)
        except ValueError:
            value = None
        if value is None or not self.accepts(value):
            raise SettingsError(f"{self.name}: expected {self.expected}, got {text!r}")
        return value


def _parse_bool(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in values:
        raise ValueError(text)
    return values[text.lower()]


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_int_in(low: int, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _is_real_in(low: float, high: float) -> Callable[[Any], bool]:
    def accepts(value: Any) -> bool:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and low <= value <= high

    return accepts


def _or_none(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or accepts(value)


def _is_absolute_path(value: Any) -> bool:
    return isinstance(value, str) and os.path.isabs(value)


def _one_of(*choices: str) -> Callable[[Any], bool]:
    return lambda value: value in choices


_BOOL = "one of 1, true, yes, 0, false, no"

ENVIRONMENT: tuple[Variable, ...] = (
    Variable("GRAMARY_NUM_THREADS", "num_threads", "an integer from 0 to 1024",
             "threads of the native core; 0 is one a usable CPU, and half of them, at most 8, in "
             "the row service", int, _is_int_in(0, 1024)),
    Variable("GRAMARY_INSTRUCTIONS", "instructions", "one of auto, avx512, avx2, scalar",
             "the widest CPU instructions that the native core may use, in the whole process from "
             "its first table on; the bytes are the same", str,
             _one_of("auto", "avx512", "avx2", "scalar")),
    Variable("GRAMARY_CHECK_IDS", "check_ids", _BOOL,
             "synchronise and raise at once for wrong ids on CUDA", _parse_bool, _is_bool),
    Variable("GRAMARY_DEBUG_CHECKS", "debug_checks", _BOOL,
             "check rules that only a caller's bug can break", _parse_bool, _is_bool),
    Variable("GRAMARY_MEMORY_LIMIT_BYTES", "memory_limit_bytes", "an integer from 1 to 2^63-1",
             "host memory to plan with instead of what the machine reports", int,
             _or_none(_is_int_in(1, 2**63 - 1))),
    Variable("LOCAL_WORLD_SIZE", "local_ranks", "an integer from 1 to 4096",
             "processes of this job on this machine, as launchers set it; they share its memory",
             int, _is_int_in(1, 4096)),
    Variable("GRAMARY_VRAM_RESERVE_GIB", "vram_reserve_gib", "a number from 0 to 1024",
             "device memory left free by device=auto; 8 % of the device, at most 4, if unset",
             float, _or_none(_is_real_in(0, 1024))),
    Variable("GRAMARY_HOST_GIB", "host_gib", "a number from 0 to 1048576",
             "host memory for the table with device=auto,host; the device gets what fits if unset",
             float,
             _or_none(_is_real_in(0, 1 << 20))),
    Variable("GRAMARY_DISK_READER", "disk_reader", "one of auto, io_uring, pread, mmap",
             "how disk rows are read", str, _one_of("auto", "io_uring", "pread", "mmap")),
    Variable("GRAMARY_DIRECT_IO", "direct_io", _BOOL,
             "let large cold batches bypass the page cache", _parse_bool, _is_bool),
    Variable("GRAMARY_MMAP_BUDGET_MIB", "mmap_budget_mib", "an integer from 1 to 1048576",
             "resident size that the mmap reader keeps its mappings under", int,
             _is_int_in(1, 1 << 20)),
    Variable("GRAMARY_HUGE_PAGES", "huge_pages", _BOOL,
             "take huge pages for host rows where they can be had", _parse_bool, _is_bool),
    Variable("GRAMARY_SHARE_FOLDER", "share_folder", "an absolute path",
             "folder of a tmpfs in which share= keeps rows", str, _is_absolute_path),
    Variable("GRAMARY_PIN_HOST", "pin_host", _BOOL,
             "register a host tier with CUDA so that the GPU can read it", _parse_bool, _is_bool),
    Variable("GRAMARY_HOST_GATHER_ROWS", "host_gather_rows", "an integer from 0 to 2^62",
             "rows a batch from which CPU threads gather host rows for a GPU; measured if unset",
             int, _or_none(_is_int_in(0, 1 << 62))),
    Variable("GRAMARY_FORCE_DOORBELL", "force_doorbell", _BOOL,
             "ring the worker even where the GPU could read the rows", _parse_bool, _is_bool),
    Variable("GRAMARY_POLL", "poll", "one of adaptive, spin, sleep",
             "how a worker waits for requests", str, _one_of("adaptive", "spin", "sleep")),
    Variable("GRAMARY_REQUEST_TIMEOUT_S", "request_timeout_s", "a number from 0.001 to 86400",
             "seconds after which a request for rows is given up", float,
             _is_real_in(0.001, 86400)),
)  # fmt: skip
