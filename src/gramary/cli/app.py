"""The command line's frame: subcommands, global options, and how errors reach the user.

A subcommand is a plain typer function in its own file, named in `COMMANDS`. Command files import
torch and the rest of gramary inside the function, so that help and usage errors stay quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import importlib
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import typer

from gramary.cli import signals
from gramary.cli.output import (
    EXIT_READER_GONE,
    OutputError,
    complain,
    say,
    standard_output,
    write_error,
)
from gramary.cli.thread_room import fit_libraries
from gramary.errors import GramaryError

COMMANDS: tuple[str, ...] = (
    "inspect",
    "plan",
    "pack",
    "verify",
    "prune",
    "generate",
    "doctor",
    "bench",
)
"""Subcommands in the order of the help page: `gramary.cli.<name>` with a function `<name>`."""

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

# What Python and the C library say where no process or thread may be started.
_NO_THREADS = ("can't start new thread", "Resource temporarily unavailable")

# The root of typer's usage errors, which has no public name.
_USAGE_ERROR: type[Any] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


@dataclasses.dataclass
class Options:
    """Global options of one invocation, filled in while the command line is parsed."""

    debug: bool = False


class CommandError(Exception):
    """Carries what a command raised past typer, which has exit codes of its own for some errors.

    Attributes:
        error: what the command raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Warnings(logging.Handler):
    """Shows what the library warns of as one paragraph on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Shows one warning."""
        complain(record.getMessage())


def _print_version(wanted: bool) -> None:
    if wanted:
        from gramary import __version__

        say(f"gramary {__version__}")
        raise typer.Exit


def _set_global_options(
    context: typer.Context,
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    _version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Hashed n-gram embedding tables: look at them, place them, serve them."""
    context.obj.debug = debug


def build_app() -> typer.Typer:
    """Returns the typer application with every subcommand of `COMMANDS`."""
    app = typer.Typer(
        name="gramary",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_set_global_options)
    for name in COMMANDS:
        module = importlib.import_module(f"gramary.cli.{name}")
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        app.command(name, context_settings=settings)(_carrying(getattr(module, name)))
    return app


def _carrying(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command whose errors pass typer unseen."""

    @functools.wraps(command)
    def run_command(*arguments: Any, **options: Any) -> None:
        try:
            with signals.raising():
                fit_libraries()
                command(*arguments, **options)
        except typer.Exit:
            raise
        except BaseException as error:
            raise CommandError(error) from error

    return run_command


def run(words: Sequence[str]) -> int:
    """Runs the command line.

    A `GramaryError`, an `OSError` or any other error of a command becomes one paragraph on
    standard error; `--debug` prints the traceback before it.

    Args:
        words: after the program's name.

    Returns:
        The exit code; docs/operations.md has the list.
    """
    options = Options()
    try:
        with contextlib.redirect_stdout(standard_output()) as output, _shown_warnings():
            code = _invoke(list(words) or ["--help"], options)
            output.flush()
    except BaseException as error:
        code = _end_for(error.error if isinstance(error, CommandError) else error, options)
    return signals.signal_code() or code


def _can_be_a_word(word: str) -> bool:
    """Returns whether the system could pass a word to a process; a caller in Python may not."""
    try:
        return b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def _invoke(words: list[str], options: Options) -> int:
    """Runs a command and returns its exit code; says what is wrong with its words."""
    for word in words:
        if not _can_be_a_word(word):
            complain(f"{word!r}: expected a word that the system can pass to a process")
            return EXIT_ERROR
    with signals.importing():
        app = build_app()
    try:
        # Whatever complete_var names in the environment would take the command's place.
        code = app(
            args=words, obj=options, prog_name="gramary", standalone_mode=False, complete_var=""
        )
    except _USAGE_ERROR as error:
        context = getattr(error, "ctx", None)
        if context is not None:
            usage, command = context.get_usage(), context.command_path
            write_error(f"{usage}\nTry '{command} --help' for help.\n\n")
        write_error(f"Error: {error.format_message()}\n")
        return EXIT_ERROR
    return code if isinstance(code, int) else 0


def _end_for(error: BaseException, options: Options) -> int:
    """Returns the exit code for what ended a command, after saying what it was."""
    if isinstance(error, OutputError) and error.is_reader_gone:
        return EXIT_READER_GONE
    if isinstance(error, KeyboardInterrupt) or signals.signal_code():
        # What an interrupt became on its way, in an import for one, is no error.
        return EXIT_INTERRUPTED
    if options.debug:
        write_error("".join(traceback.format_exception(error)))
    complain(describe_error(error))
    return EXIT_ERROR


@contextlib.contextmanager
def _shown_warnings() -> Iterator[None]:
    """Shows what the library warns of while the block runs."""
    logger, handler = logging.getLogger("gramary"), Warnings()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def describe_error(error: BaseException) -> str:
    """Returns one paragraph for an error: what happened, without a traceback."""
    if isinstance(error, GramaryError):
        return str(error)
    code = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or code == errno.ENOMEM:
        return (
            f"too little memory ({error}); end what takes it, or raise the limits of this process "
            f"(ulimit -v, its cgroup)"
        )
    if any(words in str(error) for words in _NO_THREADS):
        return (
            f"no more threads or processes may be started here ({error}); raise the limit on "
            "processes (ulimit -u, the cgroup's pids.max), or end some"
        )
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        # transformers raises some without a number.
        return f"{where}{error.strerror or error}" + (f" (errno {code})" if code else "")
    return f"unexpected {type(error).__name__}: {error}; --debug shows the traceback"


__all__ = ["COMMANDS", "Options", "build_app", "describe_error", "run"]
