"""One table in many places and encodings: the same logits, bit for bit, and the same tokens."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_engine import TINY
from stories.oracle import Oracle

from gramary.cli import main
from gramary.integrations.transformers import load, open_tables

CPU_PLACEMENTS = ("host", "disk", "host=2MiB,disk", "host=100KiB,disk")
GPU_PLACEMENTS = ("device", "device=1MiB,host", "device=1MiB,host=2MiB,disk", "host", "disk")
# fp8 rows and the bfloat16 rows they decode to are the same numbers.
COPIES = ("checkpoint", "keep", "bf16")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`copies(codec)`: models/tiny itself, or its table packed in a codec by `gramary pack`."""

    def make(codec: str) -> Path:
        if codec == "checkpoint":
            return TINY
        pack = Path(tmp_path_factory.getbasetemp()) / f"{codec}.pack"
        if not pack.exists():
            with pytest.raises(SystemExit) as left:
                main(["pack", str(TINY), str(pack), "--codec", codec])
            assert not left.value.code
        return pack

    return make


@pytest.fixture(scope="module")
def models() -> Iterator[Callable[[str], Any]]:
    """`models(device)`: the model in bfloat16, loaded once."""
    loaded: dict[str, Any] = {}

    def make(device: str) -> Any:
        if device not in loaded:
            loaded[device] = load(TINY, placement="disk").to(device)
        return loaded[device]

    yield make
    for model in loaded.values():
        model.close()


def logits_and_tokens(model: Any, prompt: list[int], device: str) -> tuple[torch.Tensor, Any]:
    """Logits of a prompt in one piece, and what the model writes behind it."""
    ids = torch.tensor([prompt], device=device)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    words = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "do_sample": False}
    return logits, model.generate(ids, **words)


def expect_everywhere(
    model: Any,
    path: Path,
    placements: Sequence[str],
    prompt: list[int],
    expected: tuple[torch.Tensor, Any],
) -> None:
    """Opens the table of a path at each placement and expects these logits and tokens, bit by bit.

    Args:
        model: whose table is opened anew.
        path: models/tiny, or a pack of its table.
        placements: where rows go.
        prompt: token ids.
        expected: as `logits_and_tokens` gives them.
    """
    logits, tokens = expected
    for placement in placements:
        model.close()
        open_tables(model, path, placement=placement)
        found, written = logits_and_tokens(model, prompt, str(logits.device))
        assert torch.equal(found, logits), placement
        assert torch.equal(written, tokens), placement


@pytest.mark.behaviour(11)
@pytest.mark.parametrize("copy", COPIES)
def test_every_placement_and_copy_gives_the_embeddings_bits(
    copy: str,
    device: str,
    copies: Callable[[str], Path],
    models: Callable[[str], Any],
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    """Behaviour 11: at every split, in every copy, what an nn.Embedding of the rows gives."""
    prompt = prompts[0]
    twin = oracle(device, torch.bfloat16).model
    expected = logits_and_tokens(twin, prompt, device)
    assert len(expected[0].unique()) > 1000
    placements = CPU_PLACEMENTS if device == "cpu" else GPU_PLACEMENTS
    expect_everywhere(models(device), copies(copy), placements, prompt, expected)


def test_an_nvfp4_copy_gives_the_bits_of_its_own_decoded_rows(
    device: str,
    copies: Callable[[str], Path],
    models: Callable[[str], Any],
    oracle: Callable[..., Oracle],
    prompts: list[list[int]],
) -> None:
    pack = copies("nvfp4")
    twin = oracle(device, torch.bfloat16, pack).model
    expected = logits_and_tokens(twin, prompts[1], device)
    placements = ("host", "host=2MiB,disk")
    expect_everywhere(models(device), pack, placements, prompts[1], expected)
    own, _ = logits_and_tokens(oracle(device, torch.bfloat16).model, prompts[1], device)
    assert not torch.equal(expected[0], own)
