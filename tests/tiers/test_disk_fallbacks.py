"""What a machine may refuse: io_uring, O_DIRECT, locked memory; each in a child process."""

from collections.abc import Iterator
from pathlib import Path

import children
import pytest
from strangers import folder_for_all

CHILD = """
import collections, errno, logging, os, resource, sys
import torch
from gramary.errors import UnsupportedError
from gramary.settings import Settings
from gramary.tiers.disk import DiskTier
from pathlib import Path
import seccomp
from disk_stage import gather, make_rows, write_layout

messages = []
handler = logging.Handler()
handler.emit = lambda record: messages.append(record.getMessage())
logging.getLogger("gramary").addHandler(handler)
rows = make_rows(20000, 160)
layout = write_layout(Path(sys.argv[1]), rows, splits=(9000,))

def drop_cache():
    for file in layout.files:
        descriptor = os.open(file.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)

def read_and_count(**settings):
    # Few and many rows, warm and cold: through every path of the reader.
    tier = DiskTier(layout, 0, len(rows), Settings(**settings))
    for num_rows in (1, 16, 3000, 15000):
        for _ in range(2):
            row_ids = torch.randperm(len(rows))[:num_rows]
            assert torch.equal(gather(tier, row_ids), rows[row_ids])
        drop_cache()
        assert torch.equal(gather(tier, row_ids), rows[row_ids])
    stats = tier.stats()
    tier.close()
    return stats
"""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Some children become another user."""
    with folder_for_all() as folder:
        yield folder


def run_child(tmp_path: Path, script: str, *, apart: bool = False) -> None:
    run = children.run_apart if apart else children.run_child
    done = run(CHILD + script, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.behaviour(30)
@pytest.mark.needs("io_uring", "seccomp")
@pytest.mark.parametrize("call", ["SETUP", "ENTER"])
def test_forbidden_io_uring_falls_back_and_says_so_once(tmp_path: Path, call: str) -> None:
    """Behaviour 30: the rows come by pread, and one message tells why."""
    run_child(
        tmp_path,
        f"""
seccomp.forbid_io_uring(errno.EPERM, seccomp.IO_URING_{call})
for _ in range(3):
    assert read_and_count()["reader"] == "pread"
assert messages == ["io_uring is not available, rows are read by pread: io_uring_{call.lower()}: "
                    + os.strerror(errno.EPERM)], messages
assert read_and_count(disk_reader="pread")["reader"] == "pread"
try:
    DiskTier(layout, 0, len(rows), Settings(disk_reader="io_uring"))
except UnsupportedError as error:
    assert "io_uring is not available" in str(error)
else:
    raise AssertionError("an option that cannot be honoured must be an error")
""",
    )


@pytest.mark.behaviour(30)
@pytest.mark.needs("io_uring_registration", "seccomp")
def test_without_registration_io_uring_reads_and_says_so_once(tmp_path: Path) -> None:
    """Behaviour 30: plain buffers and files; the message names the call that is forbidden."""
    run_child(
        tmp_path,
        """
seccomp.forbid_io_uring(errno.EPERM, seccomp.IO_URING_REGISTER)
for _ in range(3):
    stats = read_and_count()
assert (stats["reader"], stats["num_retries"]) == ("io_uring", 0)
assert len(messages) == 1 and "allowing io_uring_register helps" in messages[0], messages
""",
    )


@pytest.mark.behaviour(30)
@pytest.mark.needs("seccomp")
def test_unsupported_direct_io_falls_back_and_says_so_once(tmp_path: Path) -> None:
    """Behaviour 30: large batches go through the page cache, and one message tells why."""
    run_child(
        tmp_path,
        """
stats = read_and_count(direct_io=False)
assert not any("O_DIRECT" in message for message in messages)
# Where io_uring is refused, that was told.
messages.clear()
seccomp.forbid_direct_io(errno.EINVAL)
Path(sys.argv[1], "other").mkdir()
for reader in ("auto", "auto", "pread"):
    stats = read_and_count(disk_reader=reader)
    assert stats["num_direct_reads"] == 0 and stats["direct_alignment"] == 0
other = write_layout(Path(sys.argv[1], "other"), rows)
DiskTier(other, 0, len(rows)).close()
assert len(messages) == 1, messages
assert messages[0].startswith("O_DIRECT is not available, large batches go through the page")
assert "Invalid argument" in messages[0]
""",
    )


@pytest.mark.behaviour(30)
@pytest.mark.needs("io_uring_registration")
def test_without_lockable_memory_buffers_are_not_registered(tmp_path: Path) -> None:
    """Behaviour 30: io_uring still reads; one message names the limit."""
    run_child(
        tmp_path,
        """
if os.geteuid() == 0:
    # A user of its own: locked memory is counted by user, and that of a ring is freed late.
    os.setresuid(*[100_000 + os.getpid()] * 3)
# Room for the rings, which newer kernels count too, and none for the buffers.
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 18, 1 << 18))
assert read_and_count()["reader"] == "io_uring"
assert len(messages) == 1 and "RLIMIT_MEMLOCK" in messages[0], messages
messages.clear()
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
if read_and_count()["reader"] == "pread":
    assert len(messages) == 1 and messages[0].endswith(os.strerror(errno.ENOMEM)), messages
""",
    )


@pytest.mark.behaviour(8)
def test_too_few_descriptors_leave_nothing_open(tmp_path: Path) -> None:
    """Behaviour 8: however many descriptors are left when opening fails."""
    run_child(
        tmp_path,
        """
before = len(os.listdir("/proc/self/fd"))
failures = 0
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for limit in range(before - 1, before + 12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        tier = DiskTier(layout, 0, len(rows), Settings())
        assert torch.equal(gather(tier, torch.arange(5000)), rows[:5000])
        tier.close()
    except Exception as error:
        assert getattr(error, "errno", 0) == errno.EMFILE, error
        failures += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before
assert failures > 0
""",
    )


@pytest.mark.behaviour(30)
@pytest.mark.needs("droppable_cache", "seccomp")
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_without_a_way_to_ask_the_page_cache_a_sample_of_reads_decides(tmp_path, error) -> None:
    """Behaviour 30: cachestat is refused for files of others, and unknown to older kernels."""
    run_child(
        tmp_path,
        f"""
seccomp.forbid(seccomp.CACHESTAT, errno.{error})
rows = make_rows(40_000, 640)
layout = write_layout(Path(sys.argv[1]), rows, splits=(9000,))
for reader in ("auto", "pread"):
    tier = DiskTier(layout, 0, len(rows), Settings(disk_reader=reader))
    row_ids = torch.randperm(len(rows))
    drop_cache()
    assert torch.equal(gather(tier, row_ids), rows[row_ids])
    num_direct = tier.stats()["num_direct_reads"]
    assert num_direct > 0 or tier.stats()["direct_alignment"] == 0
    for file in layout.files:
        Path(file.path).read_bytes()
    assert torch.equal(gather(tier, row_ids), rows[row_ids])
    assert tier.stats()["num_direct_reads"] == num_direct, "now they are cached"
    tier.close()
""",
    )


@pytest.mark.behaviour(30)
@pytest.mark.parametrize("reader", ["auto", "pread", "mmap"])
def test_too_little_room_for_threads_is_an_error_at_worst(tmp_path: Path, reader: str) -> None:
    """Behaviour 30: with few threads, or none, the rows come all the same; nothing aborts."""
    run_child(
        tmp_path,
        f"""
torch.set_num_threads(1)
row_ids = torch.randint(0, len(rows), (15000,))
expected, out = rows[row_ids], torch.empty(15000, 160, dtype=torch.uint8)
outcomes = set()

def read():
    tier = DiskTier(layout, 0, len(rows), Settings(disk_reader="{reader}"))
    for num_rows in (15000, 16, 3000):
        tier.gather(row_ids[:num_rows], out[:num_rows])
        assert torch.equal(out[:num_rows], expected[:num_rows])
    tier.close()

def limit_processes(_):
    os.setresuid(65534, 65534, 65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))

def limit_addresses(num_mib):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * os.sysconf("SC_PAGESIZE") + (num_mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (room, room))

limits = [(limit_addresses, num_mib) for num_mib in (1, 4, 9, 17, 33, 65, 129, 257, 600)]
if os.geteuid() == 0:
    limits.append((limit_processes, 0))
for limit, value in limits:
    drop_cache()
    child = os.fork()
    if child == 0:
        status = 3
        try:
            limit(value)
            read()
            status = 0
        except AssertionError:
            status = 2
        except Exception as error:
            print(limit.__name__, value, repr(error), file=sys.stderr)
            status = 1
        finally:
            os._exit(status)
    outcomes.add((limit.__name__, os.waitpid(child, 0)[1]))
assert {{status for _, status in outcomes}} <= {{0, 256}}, outcomes
assert ("limit_addresses", 0) in outcomes, outcomes
if os.geteuid() == 0:
    assert ("limit_processes", 0) in outcomes, outcomes
""",
        # It counts its memory.
        apart=True,
    )
