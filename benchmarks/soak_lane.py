"""One process of a connector's soak: a connector after another, random requests, every row checked.

`python -m benchmarks.soak_lane '{"seed": 0, "num_requests": 1000, ...}'` prints a run's counts and
failures as JSON. Started by `benchmarks.soak_connector`.
"""

from __future__ import annotations

import collections
import dataclasses
import gc
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch

from gramary import Batch, Connector, Settings, Table
from gramary.errors import FetchTimeoutError, RowFetchError, SlotsBusyError
from gramary.offload.ticket import Ticket

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny"
PLACEMENT = "host=1MiB,disk"
TIMEOUT_S = 0.5
# Growth that the allocator's own habits explain.
MAX_GROWTH_KIB = 24 << 10
MAX_FAILURES = 20
MAX_RINGS = 8


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a lane does.

    Attributes:
        seed: of everything random.
        num_requests: requests in all.
        requests_each: requests of one connector, before the next is made.
    """

    seed: int
    num_requests: int
    requests_each: int = 10_000


@dataclasses.dataclass(frozen=True)
class Holdings:
    """What this process holds of the machine.

    The rings of the open table's reader are its own: it makes one more where two lanes read at
    once, up to MAX_RINGS, and closes them with the table.
    """

    descriptors: int
    rings: int
    threads: int
    resident_kib: int

    @classmethod
    def now(cls) -> Holdings:
        """Returns what it holds now, garbage collected."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        rings = files.count("anon_inode:[io_uring]")
        return cls(
            len(files) - rings,
            rings,
            len(os.listdir("/proc/self/task")),
            pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        )


class Soak:
    """Random requests against one connector after another.

    Attributes:
        counts: what was done and what came of it.
        failures: a line for each thing that must not happen; at most MAX_FAILURES.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.counts: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.resident = Table.open(MODEL, placement="host")
        self.table = Table.open(MODEL, placement=PLACEMENT)
        self.generator = torch.Generator().manual_seed(plan.seed)

    def run(self) -> dict[str, Any]:
        """Does the plan and returns a run as a receipt of counts has it, without its name."""
        began = time.monotonic()
        first = None
        while self.counts["requests"] < self.plan.num_requests and not self._has_failed():
            left = self.plan.num_requests - self.counts["requests"]
            self._soak_one(min(self.plan.requests_each, left))
            now = Holdings.now()
            # The first connectors make pools and caches that stay.
            if self.counts["connectors"] == 2:
                first = now
            elif first is not None:
                self._compare(first, now)
        last = Holdings.now()
        if first is not None:
            self.counts["growth KiB"] = max(0, last.resident_kib - first.resident_kib)
        self.resident.close()
        self.table.close()
        if Holdings.now().rings:
            self.fail("the table was closed and left rings behind")
        return {
            "parameters": {**dataclasses.asdict(self.plan), "placement": PLACEMENT},
            "seconds": round(time.monotonic() - began, 1),
            "counts": dict(self.counts),
            "failures": self.failures,
        }

    def _soak_one(self, num_requests: int) -> None:
        """Makes a connector, asks it for so much, and sees that every slot is free at the end."""
        is_process = self.random.random() < 0.15
        num_tables = self.random.choice((1, 1, 2))
        options: dict[str, Any] = {
            "num_slots": self.random.randint(1, 4),
            "worker": "process" if is_process else "thread",
            "prefill_early_request": self.random.random() < 0.8,
            "settings": Settings(
                # A process takes its time on a busy machine, and nothing holds it back on purpose.
                request_timeout_s=20 if is_process else TIMEOUT_S,
                num_threads=self.random.choice((1, 2, 3)),
                poll=self.random.choice(("adaptive", "sleep", "sleep")),
            ),
        }
        self._script_reader(0 if is_process else num_requests)
        tables = [self.table] * num_tables
        with Connector(tables, max_tokens=64, **options) as connector:
            self.counts["connectors"] += 1
            self.counts["connectors of a process"] += is_process
            if not is_process and self.random.random() < 0.5:
                connector.service.native.set_script(  # type: ignore[attr-defined]
                    max_delay_us=self.random.choice((20, 100, 400)),
                    fail_every=self.random.choice((0, 997, 211)),
                    seed=self.plan.seed,
                )
            asker = Asker(self, connector, options["num_slots"], num_tables)
            held_at = {num_requests // 3, 2 * num_requests // 3} if not is_process else set()
            for step in range(num_requests):
                if step in held_at:
                    asker.hold_one()
                asker.step()
                if self._has_failed():
                    return
            asker.finish()

    def _script_reader(self, num_requests: int) -> None:
        """Lets some reads of the next connector wait or fail: the fake reader."""
        num_faults = num_requests // 50
        faults = torch.zeros(max(1, num_faults), 4, dtype=torch.int64)
        for fault in faults[:num_faults]:
            kind = self.random.random()
            # Batch, delay in us, errno (-1: none, 0: a short read), bytes of a short read.
            fault[0] = self.random.randrange(max(1, num_requests))
            fault[1] = self.random.randrange(3000)
            fault[2] = 5 if kind < 0.1 else 0 if kind < 0.15 else -1
        if not num_faults:
            faults[0, 0], faults[0, 2] = -1, -1
        disk = self.table.residency.disk
        assert disk is not None
        disk._reader.set_script(faults)

    def _compare(self, first: Holdings, now: Holdings) -> None:
        if now.descriptors != first.descriptors:
            self.fail(f"descriptors: {first.descriptors}, now {now.descriptors}")
        if now.rings > MAX_RINGS:
            self.fail(f"rings: {now.rings}, expected at most {MAX_RINGS}")
        if now.threads != first.threads:
            self.fail(f"threads: {first.threads}, now {now.threads}")
        if now.resident_kib > first.resident_kib + MAX_GROWTH_KIB:
            self.fail(f"memory: {first.resident_kib} KiB, now {now.resident_kib} KiB")

    def fail(self, what: str) -> None:
        """Writes a failure down."""
        self.failures.append(f"request {self.counts['requests']}: {what}")

    def _has_failed(self) -> bool:
        return len(self.failures) >= MAX_FAILURES


class Asker:
    """The engine's part: asks one connector, waits in any order, cancels, compares."""

    def __init__(self, soak: Soak, connector: Connector, num_slots: int, num_tables: int) -> None:
        self.soak = soak
        self.random = soak.random
        self.counts = soak.counts
        self.connector = connector
        self.num_slots = num_slots
        self.num_tables = num_tables
        self.pending: list[tuple[Ticket, Batch]] = []

    def step(self) -> None:
        """Makes one request; before and behind it tickets are awaited or canceled."""
        while self.pending and self.random.random() < 0.4:
            self.settle_any()
        batch = self.random_batch()
        while not self.try_request(batch):
            self.settle_any()
        if self.random.random() < 0.3:
            self.settle_any()

    def try_request(self, batch: Batch) -> bool:
        """Requests a batch; False where it has to wait for a slot."""
        try:
            ticket = self.connector.request(batch)
        except SlotsBusyError:
            self.counts["busy"] += 1
            if not self.pending:
                self.soak.fail("slots are busy though every ticket was settled")
                time.sleep(0.01)
                self.pending.append((self.connector.request(batch), batch))
            return False
        except FetchTimeoutError:
            # Quarantined until the service has answered.
            self.counts["quarantined"] += 1
            time.sleep(0.001)
            return False
        self.counts["requests"] += 1
        self.counts[f"{ticket.lane} lane"] += 1
        self.pending.append((ticket, batch))
        return True

    def settle_any(self) -> None:
        """Waits for one ticket, or cancels it."""
        if not self.pending:
            return
        ticket, batch = self.pending.pop(self.random.randrange(len(self.pending)))
        if self.random.random() < 0.05:
            self.connector.cancel(ticket)
            self.counts["canceled"] += 1
            return
        tables = list(range(self.num_tables))
        self.random.shuffle(tables)
        if self.num_tables > 1 and self.random.random() < 0.1:
            tables = tables[:1]
        for table_index in tables:
            self.wait(ticket, batch, table_index)
        if len(tables) < self.num_tables:
            self.connector.release_outputs()
            self.counts["released early"] += 1

    def wait(self, ticket: Ticket, batch: Batch, table_index: int) -> None:
        """Waits for a table and compares every value, or sees that a failure is all NaN."""
        spec = self.soak.table.spec
        out = torch.full((batch.num_tokens, spec.embed_dim), 7.0)
        try:
            self.connector.wait(ticket, table_index=table_index, out=out)
        except RowFetchError as error:
            is_late = isinstance(error, FetchTimeoutError)
            self.counts["timed out" if is_late else "failed as scripted"] += 1
            if not is_late and error.errno not in (0, 5):
                self.soak.fail(f"an error nobody scripted: {error}")
            if not out.isnan().all():
                self.soak.fail(f"a failed request has rows: {error}")
            return
        expected = self.soak.resident.embed(
            batch.token_ids, batch.query_start_loc, batch.history, dtype=torch.float32
        )
        if not torch.equal(out, expected):
            self.soak.fail(f"wrong rows for {ticket}, table {table_index}")
        self.counts["rows checked"] += batch.num_tokens * spec.num_heads

    def hold_one(self) -> None:
        """Lets one request time out while the service is held, and its answer come too late."""
        while self.pending:
            self.settle_any()
        service = self.connector.service.native  # type: ignore[attr-defined]
        service.hold(True)
        batch = self.random_batch()
        while not self.try_request(batch):
            time.sleep(0.001)
        ticket, batch = self.pending.pop()
        before = self.counts["timed out"]
        for table_index in range(self.num_tables):
            self.wait(ticket, batch, table_index)
        if self.counts["timed out"] == before:
            self.soak.fail("an answer came though the service was held")
        service.hold(False)

    def finish(self) -> None:
        """Settles everything, then takes every slot once more and frees it."""
        while self.pending:
            self.settle_any()
        router, lanes = self.connector._router, self.connector._lanes
        for is_prefill, count in ((True, self.num_slots), (False, 1)):
            batch = self.random_batch(is_prefill=is_prefill)
            if is_prefill and router.choose(batch, lanes)[0] is lanes.stream:
                continue
            for _ in range(count):
                while not self.try_request(batch):
                    time.sleep(0.001)
            while self.pending:
                self.wait_for_all(*self.pending.pop(0))
        if self.connector.stats()["open_tickets"]:
            self.soak.fail("tickets are left open")

    def wait_for_all(self, ticket: Ticket, batch: Batch) -> None:
        """Waits for every table of a ticket."""
        for table_index in range(self.num_tables):
            self.wait(ticket, batch, table_index)

    def random_batch(self, is_prefill: bool | None = None) -> Batch:
        """Returns a small batch: a prompt's chunks, a decode step, drafts, padding, or nothing."""
        spec, generator = self.soak.table.spec, self.soak.generator
        if is_prefill is None:
            is_prefill = self.random.random() < 0.6
        most = 12 if is_prefill else 2
        lengths = [self.random.randint(0, most) for _ in range(self.random.randint(0, 4))]
        starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        padding = self.random.choice((0, 0, 0, 3)) if not is_prefill else 0
        tokens = torch.randint(spec.vocab_size, (sum(lengths) + padding,), generator=generator)
        history = torch.randint(
            spec.vocab_size, (len(lengths), spec.history_length), generator=generator
        )
        return Batch(tokens, starts, history=history, is_prefill=is_prefill, num_padding=padding)


def main() -> None:
    """Does the plan of the command line and prints what came of it."""
    print(json.dumps(Soak(Plan(**json.loads(sys.argv[1]))).run()))


if __name__ == "__main__":
    main()
