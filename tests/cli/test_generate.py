"""`gramary generate`: text, what the rows cost, and a comparison that fails loudly."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gramary.cli import main
from gramary.cli.generation import Generation, find_difference
from gramary.integrations import transformers as integration
from gramary.integrations.table_embedding import TableEmbedding


@pytest.fixture
def run(make_checkpoint: Any) -> Callable[..., int]:
    """Runs `gramary generate` on a small model and returns the exit code."""
    folder = make_checkpoint(codec="fp8", ple_layer_ids=(1, 3))

    def run_with(*words: str, model: Path | str = folder) -> int:
        with pytest.raises(SystemExit) as left:
            main(["generate", "--model", str(model), "--max-new-tokens", "6", *words])
        return left.value.code or 0

    return run_with


def test_text_is_streamed_and_the_rows_are_accounted_for(run, capsys) -> None:
    assert run("--prompt", "Once upon a time", "--placement", "host=100KiB,disk") == 0
    text = capsys.readouterr().out
    assert text.startswith("Once upon a time")
    # 102,400 bytes of rows of 32 bytes in memory, the rest of both tables on disk.
    assert "3,200" in text
    assert text.count("host") == 2
    assert text.count("disk") == 2
    assert "tokens/s" in text
    # 16 prompt tokens and 5 of the new ones pass both layers, 16 rows each.
    assert f"{21 * 16 * 2} rows looked up" in text


@pytest.mark.parametrize("placement", ["disk", "host=64KiB,disk", "host"])
def test_compare_resident_proves_equal_tokens_and_logits(run, capsys, placement: str) -> None:
    assert run("--prompt", "abc abc abc", "--placement", placement, "--compare", "resident") == 0
    text = capsys.readouterr().out
    assert "6 tokens and 1,560 logits are equal, bit for bit" in text


@pytest.mark.parametrize(("word", "told"), [
    ("--prefill-early-request", "requested early: 4 (host: prompt-only)"),
    ("--no-prefill-early-request", "requested early: 0 (prefill_early_request is off)"),
])  # fmt: skip
def test_a_prompt_in_chunks_tells_how_its_rows_came(run, capsys, word: str, told: str) -> None:
    words = ("--placement", "disk", "--compare", "resident", "--prefill-chunk-size", "5", word)
    assert run("--prompt", "Once upon a time", *words) == 0
    text = capsys.readouterr().out
    assert told in text
    assert "are equal, bit for bit" in text


def test_sampling_is_compared_too(run, capsys) -> None:
    words = ("--placement", "disk", "--compare", "resident", "--temperature", "1.5", "--seed", "3")
    assert run("--prompt", "abc", *words) == 0
    assert "are equal, bit for bit" in capsys.readouterr().out


def test_one_wrong_row_fails_loudly(run, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = integration.open_tables
    opened = []

    def spoil(_module: Any, _arguments: Any, rows: torch.Tensor) -> torch.Tensor:
        rows[..., -1, :] *= 1.5
        return rows

    def open_and_spoil_the_second(model: Any, *path: Any, **options: Any) -> None:
        real_open(model, *path, **options)
        opened.append(path)
        if len(opened) == 2:
            embedding = next(m for m in model.modules() if isinstance(m, TableEmbedding))
            embedding.register_forward_hook(spoil)

    monkeypatch.setattr(integration, "open_tables", open_and_spoil_the_second)
    assert run("--prompt", "abc", "--placement", "disk", "--compare", "resident") == 1
    output = capsys.readouterr()
    assert "NOT the same as with all rows in memory" in output.err
    assert "logits differ first at new token 0" in output.err
    assert "are equal" not in output.out


def test_the_prompt_may_come_from_standard_input(run, capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert run("--prompt", "-") == 0
    assert capsys.readouterr().out.startswith("from a pipe")


@pytest.mark.behaviour(33)
def test_no_bar_is_drawn_off_a_terminal(run, capsys) -> None:
    """Behaviour 33: nothing but the result when the output is no terminal."""
    assert run("--prompt", "abc") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.behaviour(13, 36)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--placement", "attic"), "attic"),
        (("--placement", "disk,host"), "disk"),
        pytest.param(("--placement", "device"), "device", marks=pytest.mark.needs("no_gpu")),
        (("--max-new-tokens", "0"), "--max-new-tokens"),
        (("--compare", "nothing"), "--compare"),
    ],
)
def test_what_cannot_be_honoured_is_an_error(run, capsys, words: tuple, message: str) -> None:
    """Behaviours 13 and 36: one paragraph that names the option, exit code 2."""
    assert run("--prompt", "abc", *words) == 2
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


def test_a_missing_folder_is_named(run, capsys) -> None:
    assert run("--prompt", "abc", model="no/such/model") == 2
    assert "no/such/model" in capsys.readouterr().err


@pytest.mark.behaviour(36)
def test_a_folder_without_tokenizer_says_what_to_download(run, capsys, copy_checkpoint) -> None:
    """Behaviour 36: the remedy is in the message."""
    folder = copy_checkpoint(codec="bf16")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert run("--prompt", "abc", model=folder) == 2
    assert "tokenizer.json" in capsys.readouterr().err


def make_generation(tokens: list[int], logits: list[list[float]]) -> Generation:
    steps = tuple(torch.tensor(step) for step in logits)
    return Generation(torch.tensor(tokens), steps, 0.5, 2.0, 0.1, 48)


def test_equal_generations_have_no_difference_not_even_with_nan() -> None:
    run = make_generation([1, 2], [[0.0, float("nan")], [1.0, 2.0]])
    assert find_difference(run, run, str) is None


def test_the_first_differing_logit_is_named() -> None:
    run = make_generation([1, 1], [[0.0, 1.0], [1.0, 2.0]])
    other = make_generation([1, 1], [[0.0, 1.0], [1.0, 2.5]])
    difference = find_difference(run, other, lambda token: f"<{token}>")
    assert "new token 1" in difference
    assert "token 1 ('<1>') 2.0 against 2.5" in difference
    assert "1 of 2 logits" in difference


def test_a_zero_and_a_negative_zero_differ() -> None:
    run, other = make_generation([0], [[0.0]]), make_generation([0], [[-0.0]])
    assert "logits differ" in find_difference(run, other, str)


def test_differing_tokens_and_lengths_are_named() -> None:
    run = make_generation([1, 2], [[1.0], [1.0]])
    other = make_generation([1, 3], [[1.0], [1.0]])
    assert "tokens differ first at new token 1: 2 ('2') against 3" in find_difference(
        run, other, str
    )
    shorter = make_generation([1], [[1.0]])
    assert "lengths differ: 2 new tokens against 1" in find_difference(run, shorter, str)


def test_the_rate_leaves_the_prompt_out() -> None:
    run = make_generation([1, 2, 3, 4], [[1.0]])
    assert run.tokens_per_s == pytest.approx(3 / 1.5)
    single = dataclasses.replace(run, tokens=torch.tensor([1]))
    assert single.tokens_per_s == pytest.approx(0.5)
