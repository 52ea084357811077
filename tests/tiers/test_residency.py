"""What a table has of each tier is a record; nothing else asks a tier which one it is."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gramary
from gramary.native.rows import NO_ROWS, RowExtent
from gramary.tiers.residency import Residency

TIERS = ("device", "host", "disk")
PACKAGE = Path(gramary.__file__).parent
# A placement's extents and requests are words of its grammar, and storage makes tiers of them.
ROOMS_OF_NAMES = ("placement", "storage", "tiers")


class Part:
    """A stand-in for a tier: its rows, and where the GPU would read them."""

    def __init__(self, name: str, first_row: int, registered: Any = NO_ROWS) -> None:
        self.name = name
        self.first_row = first_row
        self.extent = f"rows in {name}"
        self.registered_extent = registered


def residency_of(order: str, registered: Any = NO_ROWS) -> Residency:
    parts: dict[str, Any] = {}
    for index, name in enumerate(order.split(",")):
        parts[name] = Part(name, 10 * index, registered)
    return Residency(**parts)


@pytest.mark.parametrize("order", ["device,host,disk", "host,device,disk", "host,disk", "disk"])
def test_parts_stand_in_the_order_of_their_rows(order: str) -> None:
    residency, names = residency_of(order), order.split(",")
    assert [tier.name for tier in residency.tiers] == names
    in_memory = [name for name in names if name != "disk"]
    assert [tier.name for tier in residency.in_memory] == in_memory
    beyond = [name for name in names if name != "device"]
    assert [tier.name for tier in residency.beyond_device] == beyond
    assert [tier.name for tier in residency.beyond_kernels] == beyond
    held = [name for name in TIERS if getattr(residency, name) is not None]
    assert sorted(held) == sorted(names)


def test_registered_host_rows_are_within_reach_of_kernels() -> None:
    registered = RowExtent(address=1 << 40, first_row=10, num_rows=5)
    residency = residency_of("device,host,disk", registered)
    assert [tier.name for tier in residency.beyond_kernels] == ["disk"]
    extent = residency.registered_extent
    assert (extent.address, extent.first_row, extent.end_row) == (1 << 40, 10, 15)


def test_a_table_without_storage_is_nowhere() -> None:
    residency = Residency()
    assert residency.tiers == residency.beyond_device == residency.beyond_kernels == ()
    for extent in (residency.device_extent, residency.host_extent, residency.registered_extent):
        assert extent.num_rows == 0


def questions(tree: ast.AST) -> Iterator[int]:
    """Yields the lines that ask for a tier's type, or compare something with a tier's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            kinds = [name.id for name in ast.walk(node) if isinstance(name, ast.Name)]
            if node.func.id == "isinstance" and any(kind.endswith("Tier") for kind in kinds):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = [side.value for side in sides if isinstance(side, ast.Constant)]
            attributes = [side.attr for side in sides if isinstance(side, ast.Attribute)]
            if {"name", "tier"} & set(attributes) and set(TIERS) & set(words):
                yield node.lineno


def test_a_question_is_found() -> None:
    source = "isinstance(tier, HostTier)\ntier.name == 'disk'\nlane.name == 'stream'\n"
    assert list(questions(ast.parse(source))) == [1, 2]


def test_no_code_asks_a_tier_which_one_it_is() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in ROOMS_OF_NAMES
        for line in questions(ast.parse(path.read_text()))
    ]
    assert found == [], "let it use the parts of Table.residency"
