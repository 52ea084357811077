"""Two packages are compared call by call, in processes that take turns."""

from benchmarks import harness, public_calls
from benchmarks.receipts import schema as receipts


def test_smoke() -> None:
    receipt = harness.run(public_calls.BENCHMARK, smoke=True, command=["python"])
    receipts.validate(receipt)
    assert [case["baseline"] for case in receipt["cases"]] == [public_calls.EARLIER] * 5


def test_the_interval_holds_the_median_and_narrows() -> None:
    values = [float(value) for value in range(101)]
    low, high = public_calls.median_interval(values)
    assert (low, high) == (40.0, 61.0)
    assert public_calls.median_interval([3.0]) == (3.0, 3.0)
