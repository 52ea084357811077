"""The command line's frame: subcommands, global options, and how errors reach the user.

A subcommand is a plain typer function in its own file, named in `COMMANDS`. Command files import
torch and the rest of gramary inside the function, so that help and usage errors stay quick.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib
import sys
import traceback
from collections.abc import Sequence

import typer

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


@dataclasses.dataclass
class Options:
    """Global options of one invocation, filled in while the command line is parsed."""

    debug: bool = False


def _print_version(wanted: bool) -> None:
    if wanted:
        from gramary import __version__

        typer.echo(f"gramary {__version__}")
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
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_set_global_options)
    for name in COMMANDS:
        module = importlib.import_module(f"gramary.cli.{name}")
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        app.command(name, context_settings=settings)(getattr(module, name))
    return app


def describe_error(error: BaseException) -> str:
    """Returns one paragraph for an error: what happened, without a traceback."""
    if isinstance(error, GramaryError):
        return str(error)
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return (
            f"too little memory ({error}); end what takes it, or raise the limits of this process "
            f"(ulimit -v, its cgroup)"
        )
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error} (errno {error.errno})"
    return f"unexpected {type(error).__name__}: {error}; --debug shows the traceback"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and leaves the process.

    A `GramaryError`, an `OSError` or any other error of a command becomes one paragraph on
    standard error; `--debug` prints the traceback before it.

    Args:
        arguments: words after the program's name; None takes those of the process.

    Raises:
        SystemExit: always; code 0, a command's own code (1: a comparison failed), 2 for errors
            and wrong usage, 130 when interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = Options()
    try:
        build_app()(args=words, obj=options, prog_name="gramary")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        message = " ".join(describe_error(error).split())
        print(f"gramary: {message}", file=sys.stderr)
        sys.exit(EXIT_ERROR)
