"""Rows of the README are those of the page of measurements."""

import pytest

from tools.write_measurements_page import plain_name, refresh_rows, render_page, row_key, rows_of

PAGE = """\
| step | warm | ours | 2 µs | theirs | 8 µs | 0.250 |  | `a.json` |
| step | warm | ours | 3 µs | theirs | 9 µs | 0.333 |  | `b.json` |
"""


def test_rows_are_written_again() -> None:
    text = "Text.\n\n| step | warm | ours | 1 µs | theirs | 5 µs | 0.200 |  | `b.json` |\nMore.\n"
    new = "Text.\n\n| step | warm | ours | 3 µs | theirs | 9 µs | 0.333 |  | `b.json` |\nMore.\n"
    assert refresh_rows(text, PAGE) == new
    assert refresh_rows(new, PAGE) == new


def test_a_row_that_is_gone_is_named() -> None:
    with pytest.raises(KeyError, match="another step"):
        refresh_rows(
            "| another step | cold | ours | 1 s | theirs | 2 s | 0.5 |  | `a.json` |", PAGE
        )


def test_names_say_a_thing_once_and_in_words() -> None:
    for benchmark, name, expected in (
        ("disk", "pack, warm, 16 random rows", "pack, 16 random rows"),
        ("embed_gpu", "host 64 tokens, repeated", "embed from host memory, 64 tokens, repeated"),
        ("gpu_host_path", "host fp8, 8192 tokens", "embed from host memory, fp8 8192 tokens"),
        ("embed_gpu", "device 1 tokens", "embed from GPU memory, 1 token"),
        ("gpu_offload", "decode step, 64 request(s)", "decode step, 64 requests"),
        ("gpu_offload", "idle a chunk, table on disk", "wait of a prefill chunk, table on disk"),
        ("gpu_state", "decode 1 request", "state of the layer, decode 1 request"),
        ("pack", "fp8 rows, kept", "fp8 rows, kept"),
    ):
        assert plain_name(benchmark, name) == expected


def test_no_table_has_two_columns_of_one_name_or_two_rows_of_one_key() -> None:
    page = render_page()
    for line in page.splitlines():
        if line.startswith(("| work", "| run")):
            columns = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(columns) == len(set(columns))
    keys = [row_key(row) for row in rows_of(page)]
    measured = [key for key in keys if key[1] in ("cold", "warm")]
    assert len(measured) > 50
    assert len(set(measured)) == len(measured)
