"""Public calls made under every limit of file descriptors, from none left to more than enough.

    python descriptor_stage.py FOLDER SCRATCH [CALL ...]

In a process of its own, since a limit is a whole process's. Prints what was logged.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from offload_stage import make_batch, make_table

from gramary import Connector, Settings, Table
from gramary.errors import DescriptorLimitError
from gramary.files.pack import build_pack, verify_pack
from gramary.files.source import open_source
from gramary.machine.memory import read_host_room
from gramary.offload import RowServer

SETTINGS = Settings.from_env()
# More than any of these calls needs.
MOST = 25


class Sweep:
    """The calls, and what they work on.

    Args:
        folder: a model's folder.
        scratch: where packs are built.
    """

    def __init__(self, folder: str, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch
        self.source = open_source(folder)
        self.pack = scratch / "kept.pack"
        build_pack(self.source, self.pack)
        self.table = make_table()
        self.calls: dict[str, Callable[[], object]] = {
            "disk": lambda: self.open_and_read("disk"),
            "host": lambda: self.open_and_read("host"),
            "both": lambda: self.open_and_read("host=10000,disk"),
            "shared": lambda: self.open_and_read("host", share="kind13"),
            "pack": lambda: Table.open(self.pack, placement="disk", settings=SETTINGS).close(),
            "find": lambda: open_source(folder),
            "find a pack": lambda: open_source(self.pack),
            "build": self.build,
            "verify": lambda: verify_pack(self.pack, against=self.source),
            "empty": lambda: make_table().close(),
            "connector": self.connect,
            "server": lambda: RowServer(1, settings=SETTINGS).close(),
            "room": lambda: read_host_room(SETTINGS),
        }

    def open_and_read(self, placement: str, share: str | None = None) -> None:
        with Table.open(self.folder, placement=placement, share=share, settings=SETTINGS) as opened:
            opened.lookup(torch.arange(20))
            opened.check_integrity()

    def build(self) -> None:
        path = self.scratch / "new.pack"
        try:
            build_pack(self.source, path)
        finally:
            for left in (path, path.with_name("new.pack.partial")):
                left.unlink(missing_ok=True)

    def connect(self) -> None:
        with Connector(self.table, max_tokens=16, settings=SETTINGS) as connector:
            connector.wait(connector.request(make_batch(1)))

    def run(self, name: str) -> None:
        """Makes a call under each limit; it works, or says what is missing, and leaves nothing."""
        call = self.calls[name]
        if name != "server":
            # What a process opens once and keeps; a server takes seconds.
            call()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = num_open()
        num_refused = num_done = 0
        for limit in free_numbers()[:MOST]:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                call()
                num_done += 1
            except DescriptorLimitError as error:
                num_refused += 1
                require_named(str(error), limit)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert num_open() == before, (name, limit)
            if num_done > (name != "server"):
                break
        assert num_refused, name
        assert num_done, name


def require_named(message: str, limit: int) -> None:
    """Requires the limit, what was to be done and what to do about it in a message."""
    assert message.startswith("too few file descriptors to "), message
    assert f"at most {limit} may be open in this process (ulimit -n)" in message, message
    assert "raise the limit: `ulimit -n" in message, message


def num_open() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


def free_numbers(pid: int | str = "self") -> list[int]:
    """Returns the numbers below 1000 of which a process has no descriptor, the lowest first.

    A limit bounds the numbers: with the k-th of them as the limit, k more may be opened.
    """
    folder = f"/proc/{pid}/fd"
    # The folder's own, while it is looked at, is not there any more.
    taken = {int(name) for name in os.listdir(folder) if os.path.lexists(f"{folder}/{name}")}
    return sorted({*range(1000)} - taken)


def main(folder: str, scratch: str, *names: str) -> None:
    logged: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gramary").addHandler(handler)
    logging.getLogger("gramary").propagate = False
    sweep = Sweep(folder, Path(scratch))
    for name in names or sweep.calls:
        sweep.run(name)
    assert not any("not available" in message for message in logged), logged
    print("\n".join(logged))


if __name__ == "__main__":
    main(*sys.argv[1:])
