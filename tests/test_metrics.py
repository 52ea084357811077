"""Counters of tables, and their exposition for Prometheus."""

import errno
import logging
import os
import sys

import pytest
import torch
from seccomp import IO_URING_SETUP
from syscall_supervisor import run_forbidden
from table_stage import encoded_table, small_spec, write_table_folder

from gramary import Table
from gramary.errors import DependencyError, RowIdError
from gramary.metrics import TableCollector

SPEC = small_spec()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    encoded, codec = encoded_table(SPEC, "fp8")
    return write_table_folder(tmp_path_factory.mktemp("model"), SPEC, encoded, codec)


@pytest.mark.behaviour(34)
def test_counters_per_tier_add_up(folder) -> None:
    """Behaviour 34: rows, bytes, hits and the split of time, for the tier that read them."""
    with Table.open(folder, placement="host=10000,disk") as table:
        first_row = table.tiers[1].first_row
        row_ids = torch.tensor([0, 1, first_row, first_row, first_row + 1, -1])
        table.lookup(row_ids)
        stats = table.stats()
        assert (stats.num_calls, stats.num_rows_asked) == (1, 6)
        assert [tier.name for tier in stats.tiers] == ["host", "disk"]
        assert sum(tier.num_rows for tier in stats.tiers) == SPEC.num_rows
        facts = stats.tiers[1].facts
        assert (facts["num_batches"], facts["num_rows"], facts["num_distinct_rows"]) == (1, 3, 2)
        assert facts["row_bytes"] == 3 * 32
        assert facts["num_blocks"] in (1, 2)
        assert facts["amplification"] == facts["read_bytes"] / facts["row_bytes"]
        assert facts["num_failures"] == facts["num_retries"] == 0
        assert facts["planning_ns"] > 0
        assert facts["reading_ns"] + facts["cached_ns"] > 0
        before = dict(facts)
        table.lookup(torch.tensor([0, 1]))
        assert dict(table.stats().tiers[1].facts) == before, "host rows are no read from disk"


@pytest.mark.behaviour(14)
def test_opening_reports_each_tier(folder, caplog) -> None:
    """Behaviour 14: rows and bytes of every tier, in the log."""
    with caplog.at_level(logging.INFO, "gramary"), Table.open(folder, placement="host=10000,disk"):
        lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("host ") and "312 rows" in line for line in lines), lines
    assert any(line.startswith("disk ") and "968 rows" in line for line in lines), lines


@pytest.mark.behaviour(34)
@pytest.mark.needs("prometheus_client")
def test_prometheus_exposition(folder) -> None:
    """Behaviour 34: every counter under its name, with the table's and tier's labels."""
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    closed = Table.open(folder, placement="disk")
    closed.close()
    with (
        Table.open(folder, placement="disk") as disk,
        Table.open(folder, placement="host") as host,
    ):
        registry.register(TableCollector({"a": disk, "b": host, "closed": closed}))
        disk.lookup(torch.arange(100).repeat(2))
        host.lookup(torch.arange(7))

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(name, labels)

        assert value("gramary_table_calls_total", table="a") == 1
        assert value("gramary_table_rows_asked_total", table="b") == 7
        assert value("gramary_table_calls_total", table="closed") is None
        assert value("gramary_tier_rows", table="a", tier="disk") == SPEC.num_rows
        assert value("gramary_tier_bytes", table="b", tier="host") == SPEC.num_rows * 32
        assert value("gramary_disk_rows_total", table="a") == 200
        assert value("gramary_disk_distinct_rows_total", table="a") == 100
        assert value("gramary_disk_rows_total", table="b") is None
        assert value("gramary_disk_seconds_total", table="a", part="planning") > 0
        (facts,) = (tier.facts for tier in disk.stats().tiers)
        how = {"reader": facts["reader"], "note": facts["reader_note"]}
        assert value("gramary_disk_reader_info", table="a", **how) == 1
        text = prometheus_client.generate_latest(registry).decode()
    assert "# TYPE gramary_disk_read_bytes_total counter" in text
    assert text.count("# HELP") >= 17


@pytest.mark.behaviour(34)
@pytest.mark.needs("prometheus_client", "seccomp")
def test_the_kernels_refusal_stands_in_statistics_and_metrics(folder) -> None:
    """Behaviour 34: how rows are read, and why not otherwise."""
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()

    def read() -> None:
        with Table.open(folder, placement="disk") as table:
            table.lookup(torch.arange(100))
            (facts,) = (tier.facts for tier in table.stats().tiers)
            assert facts["reader"] == "pread"
            assert facts["reader_note"].endswith(f"io_uring_setup: {os.strerror(errno.EPERM)}")
            registry.register(TableCollector({"a": table}))
            how = {"table": "a", "reader": "pread", "note": facts["reader_note"]}
            assert registry.get_sample_value("gramary_disk_reader_info", how) == 1

    run_forbidden({IO_URING_SETUP: errno.EPERM}, read)


@pytest.mark.needs("prometheus_client")
def test_a_scrape_leaves_errors_to_the_tables_users(folder, monkeypatch) -> None:
    """A wrong id that a GPU met is raised by the engine's next call, not by a scrape before it."""
    import prometheus_client
    from prometheus_client import parser

    registry = prometheus_client.CollectorRegistry()
    with Table.open(folder, placement="disk") as table:
        registry.register(TableCollector({"a": table}))
        table.lookup(torch.arange(3))

        def fail() -> None:
            raise RowIdError("scripted")

        with monkeypatch.context() as patch:
            patch.setattr(table._reader, "check", fail)
            text = prometheus_client.generate_latest(registry).decode()
            with pytest.raises(RowIdError):
                table.stats()
    samples = [s for f in parser.text_string_to_metric_families(text) for s in f.samples]
    assert {s.name: s.value for s in samples}["gramary_disk_rows_total"] == 3
    assert len({(s.name, *sorted(s.labels.items())) for s in samples}) == len(samples)


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(DependencyError, match=r"gramary\[metrics\]"):
        TableCollector({})
