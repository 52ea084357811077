"""Kind 2: words for the configuration, and other configurations, as transformers takes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_utils import PreTrainedModel

from gramary.errors import ArgumentError, ConfigError, GramaryError, HashMismatchError
from gramary.integrations.transformers import load

IDS = torch.tensor([[73, 16, 32, 119, 97, 115, 8]])
ROPE = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
WORDS: list[dict[str, Any]] = [
    {"use_cache": False},
    {"output_router_logits": True},
    {"output_hidden_states": True},
    {"max_position_embeddings": 4096, "rope_parameters": ROPE},
    {"rms_norm_eps": 1e-3},
    {"num_experts_per_tok": 1},
    {"pad_token_id": 7, "bos_token_id": 8},
    {"attn_implementation": "eager"},
    {"experts_implementation": "eager"},
    {"dtype": torch.float32, "use_cache": False},
    # The rows of a sequence's first tokens are other ones then.
    {"eos_token_id": 32},
]


def config_of(model: Any) -> dict[str, Any]:
    """Returns a model's configuration for a comparison."""
    return model.config.to_dict() | {"attention": model.config._attn_implementation}


@pytest.mark.parametrize("words", WORDS, ids=lambda words: "-".join(words))
@pytest.mark.parametrize("conditional", [False, True], ids=["text", "whole"])
def test_kind_2_a_word_for_the_configuration_does_what_it_does_in_transformers(
    make_checkpoint: Callable[..., Path], words: dict[str, Any], conditional: bool
) -> None:
    """Kind 2: the same configuration, and the same logits by it."""
    folder = make_checkpoint(codec="bf16", conditional=conditional)
    name = "Qwen4ExpForConditionalGeneration" if conditional else "Qwen4ExpForCausalLM"
    try:
        oracle = getattr(transformers, name).from_pretrained(folder, **words)
    except TypeError:
        # A whole model's configuration has no such field: transformers hands the word on.
        with pytest.raises(ArgumentError, match="|".join(words)):
            load(folder, placement="disk", **words)
        return
    with load(folder, placement="disk", **words) as model, torch.no_grad():
        assert config_of(model) == config_of(oracle)
        assert torch.equal(model(input_ids=IDS).logits, oracle(input_ids=IDS).logits)


def changed_object(folder: Path) -> Any:
    """A configuration in memory."""
    config = transformers.AutoConfig.from_pretrained(folder)
    config.rms_norm_eps = 1e-3
    return config


def changed_folder(folder: Path) -> str:
    """A folder with a configuration alone."""
    changed_object(folder).save_pretrained(folder.parent / "config")
    return str(folder.parent / "config")


def changed_file(folder: Path) -> Path:
    """A file."""
    return Path(changed_folder(folder)) / "config.json"


@pytest.mark.parametrize("make", [changed_object, changed_folder, changed_file])
def test_kind_2_a_configuration_of_ones_own_is_taken(
    copy_checkpoint: Callable[..., Path], make: Callable[[Path], Any]
) -> None:
    """Kind 2: as an object, a folder or a file; with the last two, words may change it further."""
    folder = copy_checkpoint(codec="bf16")
    config = make(folder)
    words = {} if make is changed_object else {"use_cache": False}
    oracle = transformers.Qwen4ExpForCausalLM.from_pretrained(folder, config=config, **words)
    with load(folder, placement="disk", config=config, **words) as model, torch.no_grad():
        assert config_of(model) == config_of(oracle)
        assert torch.equal(model(input_ids=IDS).logits, oracle(input_ids=IDS).logits)


def without_tables(folder: Path) -> Any:
    """A configuration without PLE layers, for a run of the model without its table."""
    config = changed_object(folder)
    config.ple_layer_ids = []
    return config


REFUSED: dict[str, tuple[Callable[[Path], dict[str, Any]], type[GramaryError], str]] = {
    "no tables": (
        lambda folder: {"config": without_tables(folder)}, ConfigError, "ple_layer_ids.*none",
    ),
    "no tables, by a word": (
        lambda _: {"ple_layer_ids": []}, ConfigError, "ple_layer_ids.*none",
    ),
    "another hash": (lambda _: {"seed": 5}, HashMismatchError, "layer_multipliers"),
    "a table elsewhere": (lambda _: {"ple_layer_ids": [1]}, GramaryError, "ple_layer_ids"),
    "fewer rows": (lambda _: {"ngram_vocab_size_base": 500}, GramaryError, "ngram_heads|rows"),
    "no word": (lambda _: {"colour": "red"}, ArgumentError, "colour"),
    "a word beside an object": (
        lambda folder: {"config": changed_object(folder), "use_cache": False},
        ArgumentError,
        "use_cache.*object",
    ),
    "no configuration": (lambda _: {"config": {"model_type": "x"}}, ArgumentError, "config"),
}  # fmt: skip


@pytest.mark.behaviour(13)
@pytest.mark.parametrize("name", REFUSED)
def test_kind_2_a_configuration_that_no_table_fits_is_refused_before_loading(
    make_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Kind 2 and behaviour 13: not one weight is read, and no table opened."""
    make_words, error, message = REFUSED[name]
    monkeypatch.setattr(
        PreTrainedModel, "_load_pretrained_model", lambda *_: pytest.fail("weights were read")
    )
    folder = make_checkpoint(codec="bf16")
    with pytest.raises(error, match=message):
        load(folder, placement="disk", **make_words(folder))
