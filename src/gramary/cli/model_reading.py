"""A model's files as transformers reads them, and what it says about those that it cannot read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gramary.cli.signals import importing
from gramary.errors import ArgumentError, CheckpointError, DependencyError, GramaryError


def load_tokenizer(model: Path) -> Any:
    """Returns the tokenizer of a model's folder.

    Raises:
        ArgumentError: the folder has none, or one that transformers cannot read.
        DependencyError: transformers is missing.
    """
    try:
        with importing():
            from transformers import AutoTokenizer
    except ImportError as error:
        raise DependencyError(
            "gramary generate needs transformers: pip install 'gramary[transformers]'"
        ) from error
    try:
        # Unless code of the model's folder is refused, transformers asks the terminal about it.
        return AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except MemoryError:
        raise
    except Exception as error:
        raise ArgumentError(
            f"--model: {model} has no tokenizer that transformers can read "
            f"({describe(error)}); download tokenizer.json and tokenizer_config.json too"
        ) from error


@contextlib.contextmanager
def reading_model(model: Path) -> Iterator[None]:
    """Turns whatever transformers raises about a model's files into an error that names them.

    Raises:
        CheckpointError: transformers cannot read the model, or not run what it read.
    """
    try:
        yield
    except (GramaryError, OSError, MemoryError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"{model}: transformers cannot read or run this model ({describe(error)}); compare "
            "config.json and generation_config.json with those of the model's publisher; --debug "
            "shows the traceback"
        ) from error


def describe(error: Exception) -> str:
    """Returns an error of another library with its class, which may be all that it says."""
    return f"{type(error).__name__}: {error}"


def hush_transformers() -> None:
    """Keeps transformers' advice out of the text, and its bars off anything but a terminal."""
    try:
        with importing():
            from transformers.utils import logging
    except ImportError:
        return
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
