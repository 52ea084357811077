"""Targets: what each kind of limit is about, in receipts and in words."""

import functools

import pytest
import write_measurements_page as page
from receipt_stage import make_receipt

from benchmarks.receipts import schema as receipts
from benchmarks.receipts.errors import ReceiptError
from benchmarks.receipts.targets import Target, describe_target, read_target

# Medians 20 and 32 us, largest of the candidate 40.
SAMPLES = {"device": [19.0, 20.0, 21.0], "host": [32.0, 40.0, 31.0]}


@pytest.mark.parametrize(
    ("of", "limit", "words"),
    [
        ("ratio", 1.6, "≤ 1.6: met"),
        ("ratio", 1.59, "≤ 1.59: missed"),
        ("difference", 12, "≤ +12 µs: met"),
        ("difference", 11.9, "≤ +11.9 µs: missed"),
        ("median", 32, "≤ 32 µs: met"),
        ("median", 31.9, "≤ 31.9 µs: missed"),
        ("maximum", 40, "worst ≤ 40 µs: met"),
        ("maximum", 39.9, "worst ≤ 39.9 µs: missed"),
    ],
)
def test_a_limit_holds_up_to_itself_and_reads_off_the_page(
    of: str, limit: float, words: str
) -> None:
    """Judged, validated, read back and written as the page and the README show it."""
    compared = receipts.compare(SAMPLES, "device", {"host": Target(limit, of)})
    recorded = compared["targets"]["host"]
    assert recorded["met"] == words.endswith(": met")
    assert read_target("targets.host", recorded) == Target(limit, of)
    receipt = make_receipt()
    receipt["cases"][0] |= compared
    receipts.validate(receipt)
    (row,) = page.render_rows(receipt, "embed.json")
    assert row.split(" | ")[-2] == words


def test_a_number_is_a_ratio_and_is_recorded_as_ever() -> None:
    targets = receipts.compare(SAMPLES, "device", {"host": 2})["targets"]
    assert targets == {"host": {"at_most": 2, "met": True}}
    assert read_target("", targets["host"]) == Target(2)


def test_limits_take_the_unit_that_fits() -> None:
    recorded = {"at_most": 1600, "of": "median", "met": True}
    in_unit = functools.partial(page.format_value, unit="us")
    assert describe_target(recorded, in_unit) == "≤ 1.6 ms: met"


@pytest.mark.parametrize("recorded", [None, 0.5, [], {"at_most": "1", "met": True}])
def test_what_is_no_target_is_refused_by_its_place(recorded: object) -> None:
    with pytest.raises(ReceiptError, match=r"^cases\[0\]\.targets\.host"):
        read_target("cases[0].targets.host", recorded)
