"""Kind 16: what the errors around transformers' models advise, followed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gramary.errors import ArgumentError, ClosedError, RowFetchError, UnsupportedError
from gramary.integrations.prompt_rows import PromptRows
from gramary.integrations.transformers import load

PROMPT = torch.arange(1, 20)[None]


@pytest.fixture(scope="module")
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    return make_checkpoint(codec="bf16")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with load(folder) as opened:
        yield opened


def write(model: Any, chunk: int | None = None) -> torch.Tensor:
    return model.generate(
        input_ids=PROMPT, max_new_tokens=3, do_sample=False, prefill_chunk_size=chunk
    )


@pytest.mark.remedy("call gramary.integrations.transformers.load(path) there; state_dict() holds")
def test_kind_16_a_model_that_cannot_be_pickled(model: Any, folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="Pass the model's folder on"):
        pickle.dumps(model)
    weights = pickle.loads(pickle.dumps({k: v.clone() for k, v in model.state_dict().items()}))
    with load(folder) as there:
        there.load_state_dict(weights)
        assert torch.equal(write(there), write(model))


@pytest.mark.remedy("write model.state_dict() with safetensors.torch.save_file")
def test_kind_16_changed_weights_that_are_to_be_saved(
    model: Any, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=r"write model\.state_dict"):
        model.save_pretrained(tmp_path)
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(saved, tmp_path / "changed.safetensors")
    assert (tmp_path / "changed.safetensors").stat().st_size > 0
    assert folder.is_dir()


@pytest.mark.remedy("build it with gramary.integrations.transformers.load(path)")
def test_kind_16_a_model_without_its_table(model: Any, folder: Path) -> None:
    bare = type(model)(model.config)
    with pytest.raises(ClosedError, match="build it with gramary"):
        write(bare)
    with load(folder) as built:
        write(built)


@pytest.mark.remedy("load with prefill_early_request=False")
def test_kind_16_tokens_changed_behind_generates_back(
    model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the difference is found at the end; here it is put there."""
    end = PromptRows.end

    def end_with_a_difference(self: PromptRows) -> None:
        self._differences.append(torch.tensor(True))
        end(self)

    expected = write(model)
    monkeypatch.setattr(PromptRows, "end", end_with_a_difference)
    with pytest.raises(RowFetchError, match="load with prefill_early_request=False"):
        write(model, chunk=7)
    with load(folder, prefill_early_request=False) as late:
        assert torch.equal(write(late, chunk=7), expected)


@pytest.mark.remedy("into memory; leave it out")
def test_kind_16_an_option_that_would_read_the_table(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="leave it out"):
        load(folder, disable_mmap=True)
    load(folder).close()
