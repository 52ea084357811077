"""Statistics of tables for Prometheus: a collector that takes a snapshot at each scrape.

    from prometheus_client import REGISTRY
    REGISTRY.register(gramary.metrics.TableCollector({"ple0": table}))

Needs the extra `gramary[metrics]`. Names follow Prometheus's conventions: counters end in `_total`,
times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gramary.errors import ClosedError, DependencyError
from gramary.stats import TableStats, TierStats

if TYPE_CHECKING:
    from gramary.table import Table

_CALLS = {
    "num_calls": ("gramary_table_calls", "Lookups and embeds."),
    "num_rows_asked": ("gramary_table_rows_asked", "Rows asked for, padding included."),
    "seconds": ("gramary_table_call_seconds", "Time of callers' threads in these calls."),
}
_TIER_COUNTERS = {
    "num_rows": ("gramary_tier_read_rows", "Rows read from a tier."),
    "row_bytes": ("gramary_tier_read_bytes", "Bytes of the rows read from a tier."),
    "num_unsplit_rows": (
        "gramary_tier_unsplit_rows",
        "Rows of a GPU's launches over several tiers, of which it alone knows where each lay.",
    ),
}
_DISK_COUNTERS = {
    "num_batches": ("batches", "Batches read."),
    "num_rows": ("rows", "Rows asked for."),
    "num_distinct_rows": ("distinct_rows", "Distinct rows of each batch, by 262,144."),
    "num_blocks": ("blocks", "Distinct blocks of 4 KiB of each batch, by 262,144 rows."),
    "row_bytes": ("row_bytes", "Bytes of the rows asked for."),
    "read_bytes": ("read_bytes", "Bytes that reads brought."),
    "num_cached_reads": ("cached_reads", "Reads that the page cache answered at once."),
    "num_backend_reads": ("backend_reads", "Reads given to the backend."),
    "num_direct_reads": ("direct_reads", "Reads past the page cache."),
    "num_retries": ("retries", "Reads done again by pread."),
    "num_failures": ("failures", "Batches that failed."),
}
_DISK_TIMES = {
    "planning_ns": "planning",
    "cached_ns": "page_cache",
    "reading_ns": "backend",
    "submitting_ns": "submitting",
    "waiting_ns": "waiting",
    "scattering_ns": "scattering",
}


class TableCollector:
    """A prometheus_client collector over open tables; closed ones are left out.

    Args:
        tables: tables by the name that the label `table` gives them.

    Raises:
        DependencyError: prometheus_client is missing.
    """

    def __init__(self, tables: Mapping[str, Table]) -> None:
        try:
            from prometheus_client import metrics_core
        except ImportError as error:
            raise DependencyError(
                "metrics need prometheus_client: pip install 'gramary[metrics]'"
            ) from error
        self._core = metrics_core
        self._tables = dict(tables)

    def describe(self) -> list[Any]:
        """Returns nothing: registering takes no snapshot."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yields metric families with one sample for each table or tier."""
        snapshots = {}
        for name, table in self._tables.items():
            try:
                snapshots[name] = table.stats(check=False)
            except ClosedError:
                continue
        yield from self._of_calls(snapshots)
        tiers = [(name, tier) for name, stats in snapshots.items() for tier in stats.tiers]
        yield from self._of_tiers(tiers)
        disks = ((name, stats.tier("disk")) for name, stats in snapshots.items())
        yield from self._of_disk([(name, disk) for name, disk in disks if disk is not None])

    def _of_calls(self, snapshots: Mapping[str, TableStats]) -> Iterator[Any]:
        for field, (name, text) in _CALLS.items():
            family = self._core.CounterMetricFamily(name, text, labels=["table"])
            for table, stats in snapshots.items():
                family.add_metric([table], getattr(stats, field))
            yield family

    def _of_tiers(self, tiers: list[tuple[str, TierStats]]) -> Iterator[Any]:
        for field, what in (("num_rows", "rows"), ("nbytes", "bytes")):
            family = self._core.GaugeMetricFamily(
                f"gramary_tier_{what}", f"{what.capitalize()} in a tier.", labels=["table", "tier"]
            )
            for table, tier in tiers:
                family.add_metric([table, tier.name], getattr(tier, field))
            yield family

        for fact, (name, text) in _TIER_COUNTERS.items():
            counter = self._core.CounterMetricFamily(name, text, labels=["table", "tier"])
            for table, tier in tiers:
                counter.add_metric([table, tier.name], float(tier.facts.get(fact, 0)))
            yield counter

    def _of_disk(self, tiers: list[tuple[str, TierStats]]) -> Iterator[Any]:
        for fact, (name, text) in _DISK_COUNTERS.items():
            family = self._core.CounterMetricFamily(f"gramary_disk_{name}", text, labels=["table"])
            for table, tier in tiers:
                family.add_metric([table], float(tier.facts[fact]))
            yield family
        times = self._core.CounterMetricFamily(
            "gramary_disk_seconds", "Time by what it was spent on.", labels=["table", "part"]
        )
        depth = self._core.GaugeMetricFamily(
            "gramary_disk_max_in_flight", "Most reads in flight in one ring.", labels=["table"]
        )
        how = self._core.InfoMetricFamily(
            "gramary_disk_reader",
            "How rows are read, and what the machine does not grant for it.",
            labels=["table"],
        )
        for table, tier in tiers:
            for fact, part in _DISK_TIMES.items():
                times.add_metric([table, part], float(tier.facts[fact]) / 1e9)
            depth.add_metric([table], float(tier.facts["max_in_flight"]))
            facts = {"reader": tier.facts["reader"], "note": tier.facts["reader_note"]}
            how.add_metric([table], facts)
        yield times
        yield depth
        yield how
