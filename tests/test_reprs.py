"""What a user holds says in one line what it is and in which state; types are shipped."""

from pathlib import Path

import torch
from offload_stage import make_batch, make_table
from placement.test_plan import plan
from test_cannot_fit import CONFIG

import gramary
from gramary import Connector, PLEState, Settings, SlotPool, Table, ple
from gramary.layer import PLEGeometry


def test_a_table_says_where_its_rows_are() -> None:
    table = make_table()
    said = repr(table)
    assert said.startswith(f"<gramary.Table {table.codec.name}: {table.spec.num_rows:,} rows (")
    assert said.endswith(") host>")
    empty = Table.empty(table.spec, table.codec)
    assert repr(empty) == f"<gramary.Table {table.codec.name}: not loaded>"
    table.close()
    assert repr(table) == f"<gramary.Table {table.codec.name}: closed>"


def test_a_placement_says_what_each_tier_got() -> None:
    assert repr(plan("host=2KiB,disk")) == (
        "<gramary.Placement 'host=2KiB,disk': 204 rows (2.0 KiB) host, 796 rows (7.8 KiB) disk>"
    )


def test_a_connector_and_its_tickets_say_what_is_under_way() -> None:
    with make_table() as table:
        connector = Connector(table, max_tokens=16, num_slots=3, settings=Settings(num_threads=1))
        sizes = "1 tables on cpu, max_tokens=16, num_slots=3"
        ticket = connector.request(make_batch(1))
        assert repr(connector) == f"<gramary.Connector: {sizes}, 1 tickets under way>"
        assert repr(ticket).startswith("<gramary.Ticket: ticket 1 of the ")
        assert repr(ticket).endswith(", under way>")
        connector.wait(ticket)
        assert repr(ticket).endswith(", finished>")
        given_up = connector.request(make_batch(2))
        connector.cancel(given_up)
        assert repr(given_up).endswith(", cancelled>")
        connector.close()
        assert repr(connector) == f"<gramary.Connector: {sizes}, closed>"


def test_states_and_pools_say_how_many_windows_they_have() -> None:
    state = PLEState.fresh(PLEGeometry.from_config(CONFIG), 3, max_speculative_tokens=2)
    assert repr(state) == (
        "<gramary.PLEState: 3 requests, up to 2 drafts, 3 slots of torch.bfloat16 on cpu>"
    )
    caps = ple.Caps(
        device="cpu", mode="mixed", max_tokens=4, max_seqs=2, max_state_slots=8,
        max_speculative_tokens=0, streams=1, hidden_size=8, kernel_size=2, dilation=1,
        dtype=torch.float32,
    )  # fmt: skip
    windows = torch.zeros(5, caps.state_capacity, caps.channels)
    pool = SlotPool(caps, windows, history_length=2, model_id="m", protected=[4])
    pool.acquire()
    pool.snapshot(pool.acquire(), 0, [0, 0])
    assert repr(pool) == "<gramary.SlotPool: 2 live, 1 checkpoints, 1 free, 1 protected>"


def test_the_package_shows_its_public_names_and_ships_its_types() -> None:
    assert dir(gramary) == sorted(gramary.__all__)
    assert {"Codec", "Ticket", "RowServer", "PLEState"} <= set(dir(gramary))
    assert (Path(gramary.__file__).parent / "py.typed").read_bytes() == b""
