"""Kind 5: adapters on our model are saved and loaded as on transformers' own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from gramary.errors import UnsupportedError
from gramary.integrations.transformers import load

pytestmark = pytest.mark.needs("peft")

IDS = torch.tensor([[73, 16, 32, 119, 97, 115, 8]])


@pytest.fixture(autouse=True)
def _any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks for a peft that may not be out yet; what is used here is older."""
    integration = transformers.integrations.peft
    monkeypatch.setattr(integration, "check_peft_version", lambda **_: None)


@pytest.fixture
def folder(make_checkpoint: Callable[..., Path]) -> Path:
    """A model's folder."""
    return make_checkpoint(codec="bf16")


@pytest.fixture
def model(folder: Path) -> Iterator[Any]:
    """A model over its table."""
    with load(folder, placement="disk") as loaded:
        yield loaded


def put_on(model: Any, seed: int = 0) -> None:
    """Puts an adapter on the PLE layer's key projection and the attention, with random weights."""
    from peft import LoraConfig

    config = LoraConfig(r=2, target_modules=["q_proj", "key_proj"], init_lora_weights=False)
    torch.manual_seed(seed)
    model.add_adapter(config)


def files_of(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors that were saved, and checks which files were."""
    names = {path.name for path in folder.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors", "generation_config.json"}
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize("words", [{}, {"state_dict": True}, {"is_main_process": True}], ids=str)
def test_kind_5_an_adapter_is_saved_and_loaded_again(
    folder: Path, model: Any, tmp_path: Path, words: dict[str, Any]
) -> None:
    """Kind 5: the same files as transformers', with a trainer's words too."""
    oracle = transformers.Qwen4ExpForCausalLM.from_pretrained(folder)
    saved = {}
    for name, one in (("theirs", oracle), ("ours", model)):
        plain = one(input_ids=IDS).logits
        put_on(one)
        given = words | ({"state_dict": one.state_dict()} if "state_dict" in words else {})
        one.save_pretrained(tmp_path / name, **given)
        saved[name] = files_of(tmp_path / name)
    assert saved["ours"].keys() == saved["theirs"].keys()
    assert all(torch.equal(saved["ours"][name], saved["theirs"][name]) for name in saved["ours"])
    expected = model(input_ids=IDS).logits
    assert torch.equal(expected, oracle(input_ids=IDS).logits)
    assert not torch.equal(expected, plain)
    with load(folder, placement="disk") as again:
        again.load_adapter(str(tmp_path / "theirs"))
        assert torch.equal(again(input_ids=IDS).logits, expected)


def test_kind_5_an_adapter_in_the_models_folder_comes_with_it(
    copy_checkpoint: Callable[..., Path],
) -> None:
    """Kind 5: as with transformers; its file is no place where rows are looked for."""
    folder = copy_checkpoint(codec="bf16")
    with load(folder, placement="disk") as model:
        put_on(model)
        model.save_pretrained(folder)
        expected = model(input_ids=IDS).logits
    with load(folder, placement="disk") as model:
        assert torch.equal(model(input_ids=IDS).logits, expected)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_kind_5_pefts_own_wrapper_saves_too(model: Any, tmp_path: Path) -> None:
    """Kind 5: `get_peft_model`, whose save_pretrained writes the adapter alone."""
    from peft import LoraConfig, get_peft_model

    wrapped = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))
    wrapped.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").exists()


def test_kind_5_the_model_itself_is_refused_before_and_after(model: Any, tmp_path: Path) -> None:
    """Kind 5: the refusal concerns what would lack its rows, and writes nothing."""
    put_on(model)
    with pytest.raises(UnsupportedError, match="rows"):
        model.save_pretrained(tmp_path / "out", distributed_checkpoint=True)
    model.delete_adapter("default")
    with pytest.raises(UnsupportedError, match="adapter put on with"):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()
