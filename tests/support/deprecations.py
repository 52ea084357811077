"""Turns deprecations that torch only logs into warnings, which are errors in tests.

torch announces most deprecations by `warnings.warn`, which pytest turns into errors; some
(`torch._opaque_base`, `register_opaque_type` since 2.14) go to a logger, which no filter sees.
"""

import logging
import warnings


class _Announcer(logging.Handler):
    """Raises a logged deprecation as a warning, so that the filters of pyproject.toml decide."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "deprecated" in message:
            warnings.warn(f"{record.name}: {message}", DeprecationWarning, stacklevel=2)


def raise_logged_deprecations() -> None:
    """Watches torch's loggers from now on; in the process that calls it, and once."""
    logger = logging.getLogger("torch")
    if not any(isinstance(handler, _Announcer) for handler in logger.handlers):
        logger.addHandler(_Announcer(level=logging.WARNING))
