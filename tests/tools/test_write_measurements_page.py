"""Rows of the README are those of the page of measurements."""

import pytest

from tools.write_measurements_page import refresh_rows

PAGE = """\
| step (warm) | ours | 2 µs | theirs | 8 µs | 0.250 |  | `a.json` |
| step (warm) | ours | 3 µs | theirs | 9 µs | 0.333 |  | `b.json` |
"""


def test_rows_are_written_anew() -> None:
    text = "Text.\n\n| step (warm) | ours | 1 µs | theirs | 5 µs | 0.200 |  | `b.json` |\nMore.\n"
    new = "Text.\n\n| step (warm) | ours | 3 µs | theirs | 9 µs | 0.333 |  | `b.json` |\nMore.\n"
    assert refresh_rows(text, PAGE) == new
    assert refresh_rows(new, PAGE) == new


def test_a_row_that_is_gone_is_named() -> None:
    with pytest.raises(KeyError, match="another step"):
        refresh_rows("| another step | ours | 1 s | theirs | 2 s | 0.5 |  | `a.json` |", PAGE)
