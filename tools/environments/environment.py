"""One environment: what it takes away or changes, and the command that runs tests in it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.machine import ROOT

# Where checkouts, reports and results lie; what is there is not asked for twice.
STATE = ROOT / "build" / "environments"


class NotHereError(Exception):
    """This machine cannot give an environment; the message says why."""


@dataclasses.dataclass(frozen=True)
class Place:
    """What an environment needs for its command, made ready.

    Attributes:
        tree: the checkout whose tests run.
        python: its interpreter.
        confinement: options of `tools.environments.confine`.
        variables: what is set beside the variables of this process.
    """

    tree: Path = ROOT
    python: Path = Path(sys.executable)
    confinement: Sequence[str] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def command(self, words: Sequence[str]) -> list[str]:
        """Returns a command that runs Python with these words here."""
        command = [str(self.python), *words]
        if not self.confinement:
            return command
        confine = [sys.executable, "-m", "tools.environments.confine", *self.confinement, "--"]
        return [*confine, *command]

    def as_typed(self, words: Sequence[str]) -> str:
        """Returns a line for a shell that does the same."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        folder = [] if self.tree == ROOT else ["cd", shlex.quote(str(self.tree)), "&&"]
        return " ".join([*folder, *settings, shlex.join(self.command(words))])


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment that the tests have to pass in.

    `prepare` raises NotHereError where this machine cannot give it.

    Attributes:
        name: as it is chosen by.
        what: what is special about it, in a few words.
        prepare: makes it ready, from a folder of its own.
        num_processes: at most so many test processes.
    """

    name: str
    what: str
    prepare: Callable[[Path], Place]
    num_processes: int = 1024

    @property
    def folder(self) -> Path:
        """The folder for what it keeps."""
        return STATE / self.name
