"""The placement grammar, on texts alone."""

import pytest

from gramary.errors import PlacementError, PlacementSyntaxError
from gramary.placement.grammar import TierRequest, format_bytes, parse_placement

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("host", [("host", "all")]),
        ("device", [("device", "all")]),
        ("disk", [("disk", "all")]),
        ("host=all", [("host", "all")]),
        ("device=auto,host=auto,disk", [("device", "auto"), ("host", "auto"), ("disk", "all")]),
        ("host,device", [("host", "all"), ("device", "all")]),
        ("device=0,host", [("device", 0), ("host", "all")]),
        ("device=0B,host", [("device", 0), ("host", "all")]),
        ("host=4096", [("host", 4096)]),
        ("host=4096B", [("host", 4096)]),
        ("host=1KiB", [("host", 1024)]),
        ("host=1.5MiB", [("host", 3 << 19)]),
        ("host=47.7GiB,disk", [("host", int(477 * GIB / 10)), ("disk", "all")]),
        ("host=0.1B", [("host", 0)]),
        ("host=2TiB", [("host", 2 << 40)]),
    ],
)
def test_parses(text: str, requests: list[tuple[str, int | str]]) -> None:
    assert [(request.tier, request.budget) for request in parse_placement(text)] == requests


def test_a_decimal_size_is_exact() -> None:
    """Binary floating point would make 0.3 TiB one byte short or long."""
    [request] = parse_placement("host=0.3TiB")
    assert request.budget == 3 * (1 << 40) // 10


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "expected device, host or disk"),
        (",host", 0, "expected device, host or disk"),
        ("host,", 5, "expected device, host or disk"),
        ("gpu", 0, "expected device, host or disk, got 'gpu'"),
        ("Host", 0, "expected device, host or disk"),
        ("device,cpu=4GiB", 7, "got 'cpu'"),
        ("host, disk", 5, "got ' disk'"),
        ("host,host=1", 5, "host is named twice"),
        ("disk,host", 5, "disk must be last"),
        ("disk=4GiB", 5, "disk takes no size"),
        ("host,disk=auto", 10, "disk takes no size"),
        ("host=", 5, "expected a size, auto or all, got ''"),
        ("host=-1", 5, "got '-1'"),
        ("host=1.5", 5, "got '1.5'"),
        ("host=1GB", 5, "got '1GB'"),
        ("host=1gib", 5, "got '1gib'"),
        ("host=.5GiB", 5, "got '.5GiB'"),
        ("host=1 GiB", 5, "got '1 GiB'"),
        ("host=1e9", 5, "got '1e9'"),
        ("host=١GiB", 5, "got '١GiB'"),
        ("host=50%", 5, "got '50%'"),
        ("host=AUTO", 5, "got 'AUTO'"),
        ("host=4=5", 5, "got '4=5'"),
        ("host=" + "9" * 5000, 5, "expected a size"),
    ],
)
def test_refusals_show_where_and_the_grammar(text: str, position: int, problem: str) -> None:
    with pytest.raises(PlacementSyntaxError) as error:
        parse_placement(text)
    message = str(error.value)
    assert problem in message
    assert f"at position {position}\n" in message
    lines = message.splitlines()
    assert lines[1] == f"  {text}"
    assert lines[2] == "  " + " " * position + "^"
    assert 'tier      = "device" ["=" budget]' in message
    assert isinstance(error.value, PlacementError)


def test_requests_print_as_they_parse() -> None:
    for text in ("device", "host=auto", "device=4096", "disk"):
        [request] = parse_placement(text)
        assert parse_placement(str(request)) == (request,)
    assert str(TierRequest("host", "all")) == "host"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 19, "1.5 MiB"),
     (51_200_245_760, "47.7 GiB"), (1 << 41, "2.0 TiB")],
)  # fmt: skip
def test_bytes_for_people(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text
