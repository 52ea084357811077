"""Standard input, output and error of the process, where its parent closed them (`>&-`)."""

from __future__ import annotations

import os
import sys

# Opened the wrong way round, so that reading and writing still fail, as on a closed descriptor.
# What is said on standard error goes nowhere: it is no result, and libraries count on the stream.
_FLAGS = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}


def fill_closed_descriptors() -> None:
    """Opens /dev/null in the place of each standard descriptor that is closed.

    The next file to be opened would get its number: a table's, or that of a pack being written, and
    whatever a library says on standard error would be written into it.
    """
    for descriptor, flags in _FLAGS.items():
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, flags), True)
            if descriptor == 2:
                sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
