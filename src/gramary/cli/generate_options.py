"""What `gramary generate` checks of its options before it imports or loads anything for them."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

from gramary.errors import ArgumentError

# Tokens: more than any model's context.
MAX_COUNT = 1 << 30
# What torch.manual_seed takes.
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 64) - 1
# Logits divided by less than that may leave the range of float32.
MIN_TEMPERATURE = 1e-6


def require_temperature(temperature: float) -> None:
    """Raises ArgumentError unless it is 0 or a number that logits can be divided by."""
    if temperature != 0 and not MIN_TEMPERATURE <= temperature < math.inf:
        raise ArgumentError(
            f"--temperature: expected 0 or a number from {MIN_TEMPERATURE:g} on, got {temperature}"
        )


def require_text(option: str, path: Path) -> None:
    """Raises ArgumentError for a path of bytes that are not UTF-8: the tokenizers open none."""
    if any("\udc80" <= it <= "\udcff" for it in str(path)):
        raise ArgumentError(
            f"{option}: expected a name in UTF-8, which transformers needs, got {path}; rename the "
            "folder, or make a symbolic link to it"
        )


def read_prompt(prompt: str) -> str:
    """Returns the prompt's text, read from standard input for "-".

    Raises:
        ArgumentError: standard input cannot be read, or the text is not UTF-8.
    """
    content = _read_input() if prompt == "-" else os.fsencode(_without_lone_surrogates(prompt))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"--prompt: expected text in UTF-8, got byte {content[error.start]:#04x} at byte "
            f"{error.start}"
        ) from error


def _without_lone_surrogates(prompt: str) -> str:
    """Raises ArgumentError for what no command line holds and no encoding has."""
    for position, character in enumerate(prompt):
        if "\ud800" <= character <= "\udc7f" or "\udd00" <= character <= "\udfff":
            raise ArgumentError(
                f"--prompt: expected text, got the surrogate {character!r} at position {position}"
            )
    return prompt


def _read_input() -> bytes:
    stream = sys.stdin
    if stream is None:
        raise ArgumentError("--prompt: - reads standard input, which is closed")
    try:
        binary = getattr(stream, "buffer", None)
        return binary.read() if binary is not None else stream.read().encode()
    except OSError as error:
        raise ArgumentError(
            f"--prompt: standard input cannot be read: {error.strerror} (errno {error.errno})"
        ) from error


def encode_prompt(tokenizer: Any, text: str) -> Any:
    """Returns the prompt's token ids, int64 [1, N].

    Raises:
        ArgumentError: the text has no token.
    """
    token_ids = tokenizer(text, return_tensors="pt").input_ids
    if token_ids.shape[1] == 0:
        raise ArgumentError(f"--prompt: expected text of at least one token, got {text!r}")
    return token_ids


def require_device(device: str | None) -> str:
    """Returns the name of the model's device; None is a GPU, if there is one.

    Raises:
        ArgumentError: it is neither the CPU nor a CUDA device of this machine.
    """
    import torch

    from gramary.storage.allocation import resolve_device

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return str(resolve_device(device, "disk"))
