"""What the command says, and the one place where text is made fit for a terminal.

Whatever goes to standard output passes through `StandardOutput`: control characters of a path, of
a file's content or of a model's text are written as escapes (`\\x1b`), and so is what the encoding
does not have. A stream that cannot be written to is an `OutputError`, whoever wrote.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

from gramary.errors import GramaryError

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT_READER_GONE = 128 + signal.SIGPIPE

# Of control characters, text keeps line ends and tabs.
_KEPT = "\n\t"
# C0, DEL and C1, and the bytes of a name that is not in the file system's encoding.
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_ESCAPES = {code: repr(chr(code))[1:-1] for code in _CONTROLS if chr(code) not in _KEPT}
_ESCAPES |= {0xDC00 + byte: f"\\x{byte:02x}" for byte in range(0x80, 0x100)}


class OutputError(GramaryError):
    """Standard output cannot be written to.

    Attributes:
        is_reader_gone: whether a pipe's reader went away, as `head` does once it has enough.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output: {error.strerror or error} (errno {error.errno})")
        self.is_reader_gone = error.errno == errno.EPIPE


class StandardOutput(io.TextIOBase):
    """Standard output that takes any text.

    Args:
        stream: where text goes; None stands for a descriptor that the parent closed.
        keeps_controls: whether control characters are written as they are: those of styles.
    """

    def __init__(self, stream: TextIO | None, *, keeps_controls: bool = False) -> None:
        super().__init__()
        self._stream = stream
        self._keeps_controls = keeps_controls

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's encoding."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def with_controls(self) -> StandardOutput:
        """Returns the same output for text whose control characters are styles."""
        return StandardOutput(self._stream, keeps_controls=True)

    def write(self, text: str) -> int:
        """Writes text; returns its length.

        Raises:
            OutputError: the stream cannot be written to.
        """
        shown = text if self._keeps_controls else escape_controls(text)
        try:
            self._require_stream().write(encodable(shown, self.encoding))
        except OSError as error:
            raise OutputError(error) from error
        return len(text)

    def flush(self) -> None:
        """Writes what is buffered.

        Raises:
            OutputError: the stream cannot be written to.
        """
        try:
            if self._stream is not None:
                self._stream.flush()
        except OSError as error:
            raise OutputError(error) from error

    def writable(self) -> bool:
        """Returns True."""
        return True

    def isatty(self) -> bool:
        """Returns whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        """Returns the stream's descriptor.

        Raises:
            OSError: it has none.
        """
        return self._require_stream().fileno()

    def _require_stream(self) -> TextIO:
        if self._stream is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._stream


def escape_controls(text: str) -> str:
    """Returns text with its control characters escaped, line ends and tabs apart."""
    return text.translate(_ESCAPES)


def shown(value: object) -> str:
    """Returns a path, or a name from a file, as one line: what does not print is escaped.

    Line ends, and characters that change the direction of what follows, are escaped too.
    """
    return "".join(
        character if character.isprintable() else _escape(character) for character in str(value)
    )


def _escape(character: str) -> str:
    return _ESCAPES.get(ord(character)) or repr(character)[1:-1]


def encodable(text: str, encoding: str) -> str:
    """Returns text with escapes in the place of what an encoding does not have."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def say(text: str = "", *, end: str = "\n") -> None:
    """Writes text to standard output, at once.

    Raises:
        OutputError: standard output cannot be written to.
    """
    output = standard_output()
    output.write(text + end)
    output.flush()


def say_json(value: object) -> None:
    """Writes a value as JSON, in ASCII.

    Raises:
        OutputError: standard output cannot be written to.
    """
    # The one control character that the encoder leaves as it is.
    say(json.dumps(value, indent=1).replace("\x7f", "\\u007f"))


def say_grid(*renderables: RenderableType) -> None:
    """Writes tables of rich, with colours on a terminal.

    Raises:
        OutputError: standard output cannot be written to.
    """
    from rich.console import Console
    from rich.segment import Segment

    class PlainConsole(Console):
        """Escapes the text of what it renders, and keeps the styles."""

        def render(self, *arguments: Any, **options: Any) -> Any:
            for segment in super().render(*arguments, **options):
                text = segment.text if segment.control else escape_controls(segment.text)
                yield Segment(text, segment.style, segment.control)

    output = standard_output()
    screen = cast(TextIO, output.with_controls())
    console = PlainConsole(file=screen, soft_wrap=True, highlight=False)
    for renderable in renderables:
        console.print(renderable, markup=False)
    output.flush()


def standard_output() -> StandardOutput:
    """Returns standard output, fit for any text."""
    return sys.stdout if isinstance(sys.stdout, StandardOutput) else StandardOutput(sys.stdout)


def complain(message: str) -> None:
    """Writes one paragraph about what is wrong to standard error; a closed one is no error."""
    write_error(f"gramary: {shown(' '.join(message.split()))}\n")


def write_error(text: str) -> None:
    """Writes text to standard error, its control characters escaped; a closed one is no error."""
    stream = sys.stderr
    if stream is None:
        return
    try:
        stream.write(encodable(escape_controls(text), stream.encoding or "utf-8"))
        stream.flush()
    except (OSError, ValueError):
        # Nothing is left to say it to.
        return


__all__ = [
    "EXIT_READER_GONE",
    "OutputError",
    "StandardOutput",
    "complain",
    "encodable",
    "escape_controls",
    "say",
    "say_grid",
    "say_json",
    "shown",
    "standard_output",
    "write_error",
]
