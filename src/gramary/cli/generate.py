"""`gramary generate`: a model writes text with its n-gram table wherever it was placed."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to write.")] = 64,
    prefill_chunk_size: Annotated[
        int | None,
        typer.Option(min=1, help="Read the prompt in chunks of so many tokens."),
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
    seed: Annotated[int, typer.Option(help="Seed for sampling.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="Device of the model (default: cuda if there is one).")
    ] = None,
) -> None:
    """Let a model write text, and show where its rows lay and what they cost."""
    from gramary.cli.progress import progress_bar
    from gramary.integrations import transformers as integration

    text = sys.stdin.read() if prompt == "-" else prompt
    device = device or default_device()
    options: dict[str, Any] = {} if device == "cpu" else {"device_map": {"": device}}
    hush_transformers()
    tokenizer = load_tokenizer(model)
    with progress_bar("loading rows") as advance:
        loaded = integration.load(
            model,
            placement=placement,
            prefill_early_request=prefill_early_request,
            progress=advance,
            **options,
        )
    with loaded:
        prompt_ids = tokenizer(text, return_tensors="pt").input_ids.to(loaded.device)
        sampling = {"do_sample": True, "temperature": temperature} if temperature else None
        words: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "sampling": sampling,
            "seed": seed,
            "prefill_chunk_size": prefill_chunk_size,
        }
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

    typer.echo(text, nl=False)
    stream = make_stream(tokenizer)
    run = run_generation(model, prompt_ids, show_tokens=stream.put, **words)
    stream.end()
    return run


def make_stream(tokenizer: Any) -> Any:
    """Returns a text streamer that prints whole words to standard output."""
    from transformers import TextStreamer

    class EchoStreamer(TextStreamer):  # type: ignore[misc]
        """Prints by `typer.echo`, so that a closed or redirected output is handled there."""

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            typer.echo(text, nl=stream_end)

    return EchoStreamer(tokenizer, skip_special_tokens=True)


def compare_runs(
    run: Generation, model: Any, tokenizer: Any, prompt_ids: Any, words: dict[str, Any]
) -> None:
    """Generates again and reports; raises typer.Exit with code 1 where something differs."""
    from gramary.cli.generation import find_difference, run_generation

    resident = run_generation(model, prompt_ids, **words)
    difference = find_difference(run, resident, lambda token: str(tokenizer.decode([token])))
    if difference is not None:
        typer.echo(f"gramary: NOT the same as with all rows in memory: {difference}", err=True)
        raise typer.Exit(EXIT_DIFFERENT)
    num_logits = sum(step.numel() for step in run.logits)
    typer.echo(
        f"Same as with all rows in memory: {len(run.tokens):,} tokens and {num_logits:,} logits "
        f"are equal, bit for bit ({resident.tokens_per_s:.1f} tokens/s there)."
    )


def print_costs(tables: tuple[Table, ...], run: Generation, num_prompt_tokens: int) -> None:
    """Prints where the rows lay, and what reading them took."""
    from rich.console import Console
    from rich.table import Table as Grid

    from gramary.placement_grammar import format_bytes

    grid = Grid(title="n-gram rows", title_justify="left")
    for heading in ("table", "tier", "rows", "bytes"):
        grid.add_column(heading, justify="left" if heading in ("table", "tier") else "right")
    for index, table in enumerate(tables):
        for extent in table.placement.filled:
            size = format_bytes(extent.nbytes)
            grid.add_row(f"PLE layer {index}", extent.tier, f"{extent.num_rows:,}", size)
    console = Console(soft_wrap=True)
    console.print(grid)
    share = 100 * run.rows_s / run.total_s
    console.print(
        f"{num_prompt_tokens:,} prompt tokens in {run.first_token_s:.2f} s, then "
        f"{run.tokens_per_s:.1f} tokens/s; {run.num_rows:,} rows looked up in "
        f"{run.rows_s * 1e3:.1f} ms ({share:.1f} % of {run.total_s:.2f} s)",
        highlight=False,
    )


def print_requests(stats: dict[str, Any]) -> None:
    """Prints which chunks' rows were requested early, and why others were not."""
    reasons = [*stats["lanes"], *(reason for reason in stats["prompts"] if reason != "early")]
    typer.echo(
        f"Chunks of the prompt with rows requested early: {stats['chunks']:,} "
        f"({'; '.join(reasons)})"
    )


def load_tokenizer(model: Path) -> Any:
    """Returns the tokenizer of a model's folder.

    Raises:
        ArgumentError: the folder does not exist, or has none.
        DependencyError: transformers is missing.
    """
    from gramary.errors import ArgumentError, DependencyError

    if not model.is_dir():
        raise ArgumentError(f"--model: expected a model's folder, got {str(model)!r}")
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise DependencyError(
            "gramary generate needs transformers: pip install 'gramary[transformers]'"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"--model: {model} has no tokenizer that transformers can read ({error}); download "
            "tokenizer.json too"
        ) from error


def default_device() -> str:
    """Returns the device a model goes to unless one is named."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def hush_transformers() -> None:
    """Keeps transformers' advice out of the text, and its bars off anything but a terminal."""
    try:
        from transformers.utils import logging
    except ImportError:
        return
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
