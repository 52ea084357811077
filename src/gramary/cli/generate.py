"""`gramary generate`: a model writes text with its n-gram table wherever it was placed."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gramary.cli.generate_options import (
    MAX_COUNT,
    MAX_SEED,
    MIN_SEED,
    encode_prompt,
    read_prompt,
    require_device,
    require_temperature,
    require_text,
)
from gramary.cli.output import complain, say, say_grid
from gramary.cli.signals import importing
from gramary.errors import ArgumentError

if TYPE_CHECKING:
    from gramary.cli.generation import Generation
    from gramary.table import Table

EXIT_DIFFERENT = 1


class Comparison(enum.StrEnum):
    """What a generation may be compared with."""

    resident = "resident"


def generate(
    model: Annotated[Path, typer.Option(help="The model's folder.")],
    prompt: Annotated[str, typer.Option(help="Text to continue; - reads standard input.")],
    placement: Annotated[
        str, typer.Option(help="Where rows go, e.g. disk, host, or host=4GiB,disk.")
    ] = "host",
    max_new_tokens: Annotated[
        int, typer.Option(min=1, max=MAX_COUNT, help="Most tokens to write.")
    ] = 64,
    prefill_chunk_size: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_COUNT, help="Read the prompt in chunks of so many tokens."),
    ] = None,
    prefill_early_request: Annotated[
        bool, typer.Option(help="Request a chunk's rows while the one before computes.")
    ] = True,
    compare: Annotated[
        Comparison | None,
        typer.Option(
            help="Run again with all rows in memory; exit code 1 if a token or a logit differs."
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Sample with this temperature; 0 takes the likeliest.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=MIN_SEED, max=MAX_SEED, help="Seed for sampling.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="Device of the model (default: cuda if there is one).")
    ] = None,
) -> None:
    """Let a model write text, and show where its rows lay and what they cost."""
    if not model.is_dir():
        raise ArgumentError(f"--model: expected a model's folder, got {str(model)!r}")
    require_text("--model", model)
    require_temperature(temperature)
    text = read_prompt(prompt)
    with importing():
        from gramary.cli.model_reading import hush_transformers, load_tokenizer, reading_model
        from gramary.cli.progress import progress_bar
        from gramary.files.source import find_sources
        from gramary.integrations import transformers as integration
    device = require_device(device)
    options: dict[str, Any] = {} if device == "cpu" else {"device_map": {"": device}}
    # What is wrong with the files is said in our words, before transformers says it in its own.
    find_sources(model)
    hush_transformers()
    tokenizer = load_tokenizer(model)
    with progress_bar("loading rows") as advance, reading_model(model):
        loaded = integration.load(
            model,
            placement=placement,
            prefill_early_request=prefill_early_request,
            progress=advance,
            **options,
        )
    with loaded:
        prompt_ids = encode_prompt(tokenizer, text).to(loaded.device)
        sampling = {"do_sample": True, "temperature": temperature} if temperature else None
        words: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "sampling": sampling,
            "seed": seed,
            "prefill_chunk_size": prefill_chunk_size,
        }
        with reading_model(model):
            run = stream_text(loaded, tokenizer, text, prompt_ids, words)
        print_costs(loaded.tables, run, prompt_ids.shape[1])
        if prefill_chunk_size is not None:
            print_requests(loaded.early_request_stats())
        if compare is not None:
            integration.open_tables(loaded, model, placement="host", prefill_early_request=False)
            compare_runs(run, loaded, tokenizer, prompt_ids, words)


def stream_text(
    model: Any, tokenizer: Any, text: str, prompt_ids: Any, words: dict[str, Any]
) -> Generation:
    """Runs the model and prints the prompt and each word as it comes."""
    from gramary.cli.generation import run_generation

    say(text, end="")
    stream = make_stream(tokenizer)
    run = run_generation(model, prompt_ids, show_tokens=stream.put, **words)
    stream.end()
    return run


def make_stream(tokenizer: Any) -> Any:
    """Returns a text streamer that prints whole words to standard output."""
    from transformers import TextStreamer

    class EchoStreamer(TextStreamer):  # type: ignore[misc]
        """Prints by `say`, which takes any text."""

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            say(text, end="\n" if stream_end else "")

    return EchoStreamer(tokenizer, skip_special_tokens=True)


def compare_runs(
    run: Generation, model: Any, tokenizer: Any, prompt_ids: Any, words: dict[str, Any]
) -> None:
    """Generates again and reports; raises typer.Exit with code 1 where something differs."""
    from gramary.cli.generation import find_difference, run_generation

    resident = run_generation(model, prompt_ids, **words)
    difference = find_difference(run, resident, lambda token: str(tokenizer.decode([token])))
    if difference is not None:
        complain(f"NOT the same as with all rows in memory: {difference}")
        raise typer.Exit(EXIT_DIFFERENT)
    num_logits = sum(step.numel() for step in run.logits)
    say(
        f"Same as with all rows in memory: {len(run.tokens):,} tokens and {num_logits:,} logits "
        f"are equal, bit for bit ({resident.tokens_per_s:.1f} tokens/s there)."
    )


def print_costs(tables: tuple[Table, ...], run: Generation, num_prompt_tokens: int) -> None:
    """Prints where the rows lay, and what reading them took."""
    from rich.table import Table as Grid

    from gramary.placement.grammar import format_bytes

    grid = Grid(title="n-gram rows", title_justify="left")
    for heading in ("table", "tier", "rows", "bytes"):
        grid.add_column(heading, justify="left" if heading in ("table", "tier") else "right")
    for index, table in enumerate(tables):
        for extent in table.placement.filled:
            size = format_bytes(extent.nbytes)
            grid.add_row(f"PLE layer {index}", extent.tier, f"{extent.num_rows:,}", size)
    say_grid(grid)
    share = 100 * run.rows_s / run.total_s
    say(
        f"{num_prompt_tokens:,} prompt tokens in {run.first_token_s:.2f} s, then "
        f"{run.tokens_per_s:.1f} tokens/s; {run.num_rows:,} rows looked up in "
        f"{run.rows_s * 1e3:.1f} ms ({share:.1f} % of {run.total_s:.2f} s)"
    )


def print_requests(stats: dict[str, Any]) -> None:
    """Prints which chunks' rows were requested early, and why others were not."""
    reasons = [*stats["lanes"], *(reason for reason in stats["prompts"] if reason != "early")]
    say(
        f"Chunks of the prompt with rows requested early: {stats['chunks']:,} "
        f"({'; '.join(reasons)})"
    )
