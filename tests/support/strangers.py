"""What another user, whom a test becomes, has to reach."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from abilities import folder_open_to_all


@contextlib.contextmanager
def folder_for_all() -> Iterator[Path]:
    """A folder among the temporary ones that every user may enter and read, for a while.

    pytest's own are closed to other users, and closed again by every pytest that starts.
    """
    with tempfile.TemporaryDirectory(prefix="gramary-test-", dir=folder_open_to_all()) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
