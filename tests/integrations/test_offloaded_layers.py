"""Kind 3: models whose layers accelerate keeps elsewhere: the table follows where they compute."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from accelerate import cpu_offload, cpu_offload_with_hook
from accelerate.hooks import AlignDevicesHook, SequentialHook, add_hook_to_module

from gramary.integrations.execution_device import execution_device
from gramary.integrations.transformers import load, open_tables

IDS = torch.tensor([[73, 16, 32, 119, 97, 115, 8]])
# The PLE layers of this model are in decoder layers 0 and 2.
OPTIONS: dict[str, Any] = {"codec": "bf16", "ple_layer_ids": (1, 3)}
OUTER = ("model.embed_tokens", "model.rotary_emb", "model.hyper_connection_mixer", "lm_head")


def by_layer(*on_disk: int) -> dict[str, str]:
    """A map that puts some decoder layers on the disk."""
    layers = {f"model.layers.{i}": "disk" if i in on_disk else "cpu" for i in range(4)}
    return layers | dict.fromkeys(OUTER, "cpu")


def by_module(layer: int) -> dict[str, str]:
    """A map that puts a PLE module on the disk and the rest of its decoder layer elsewhere."""
    names = ("mlp", "ple", "linear_attn", "attn_hyper_connection", "mlp_hyper_connection")
    apart = {f"model.layers.{layer}.{name}": "disk" if name == "ple" else "cpu" for name in names}
    return {
        name: place for name, place in by_layer().items() if not name.endswith(f".{layer}")
    } | apart


MAPS: dict[str, dict[str, Any]] = {
    "one PLE layer": {"device_map": by_layer(0)},
    "every PLE layer, buffers too": {"device_map": by_layer(0, 2), "offload_buffers": True},
    "another layer": {"device_map": by_layer(1)},
    "all": {"device_map": {"": "disk"}},
    "auto": {"device_map": "auto", "max_memory": {"cpu": "300KB"}},
    "the PLE module alone": {"device_map": by_module(0)},
    "on the CPU": {"device_map": "cpu"},
}


@pytest.mark.parametrize("name", MAPS)
def test_kind_3_a_layer_on_the_disk_computes_what_it_computes_in_memory(
    make_checkpoint: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """Kind 3: the same logits and tokens, in chunks too, and tables that are opened again."""
    folder = make_checkpoint(**OPTIONS)
    oracle = transformers.Qwen4ExpForCausalLM.from_pretrained(folder)
    words = MAPS[name] | {"offload_folder": str(tmp_path)}
    with load(folder, placement="disk", **words) as model, torch.no_grad():
        assert [table.device.type for table in model.tables] == ["cpu", "cpu"]
        assert torch.equal(model(input_ids=IDS).logits, oracle(input_ids=IDS).logits)
        options = {"max_new_tokens": 3, "do_sample": False, "prefill_chunk_size": 3}
        expected = oracle.generate(IDS, **options)
        assert torch.equal(model.generate(IDS, **options), expected)
        assert model.early_request_stats()["chunks"] == 3
        open_tables(model, placement="host")
        assert torch.equal(model.generate(IDS, **options), expected)


def test_kind_3_the_nearest_hook_says_where_a_layer_computes() -> None:
    """Kind 3: on the layer or around it, one or several, and none that knows no device."""
    model = torch.nn.ModuleDict({"block": torch.nn.ModuleDict({"proj": torch.nn.Linear(2, 2)})})
    block, proj = model["block"], model["block"]["proj"]
    assert execution_device(model, proj).type == "cpu"
    add_hook_to_module(model, AlignDevicesHook("cuda:1"))
    assert execution_device(model, proj) == torch.device("cuda:1")
    add_hook_to_module(block, SequentialHook(AlignDevicesHook("cuda:0"), AlignDevicesHook()))
    assert execution_device(model, proj) == torch.device("cuda:0")
    proj.to("meta")
    assert execution_device(model, proj) == torch.device("cuda:0")
    proj._hf_hook = AlignDevicesHook("cpu")
    assert execution_device(model, proj).type == "cpu"
    alone = torch.nn.Linear(2, 2, device="meta")
    assert execution_device(alone, alone).type == "cpu"


@pytest.mark.parametrize("offload", [cpu_offload, lambda *a: cpu_offload_with_hook(*a)[0]])
def test_kind_3_hooks_that_are_put_on_later_leave_the_tables_open(
    make_checkpoint: Callable[..., Path], offload: Callable[..., Any]
) -> None:
    """Kind 3: whoever offloads a loaded model itself."""
    folder = make_checkpoint(**OPTIONS)
    with load(folder, placement="disk") as model, torch.no_grad():
        expected = model(input_ids=IDS).logits
        offload(model, torch.device("cpu"))
        assert torch.equal(model(input_ids=IDS).logits, expected)
        open_tables(model, placement="disk")
        assert torch.equal(model(input_ids=IDS).logits, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["cpu", "disk"])
@pytest.mark.parametrize("placement", ["device", "host", "disk"])
def test_kind_3_a_layer_kept_off_the_gpu_computes_on_it(
    make_checkpoint: Callable[..., Path], tmp_path: Path, place: str, placement: str
) -> None:
    """Kind 3: its table is the GPU's, wherever its weights wait."""
    folder = make_checkpoint(**OPTIONS)
    oracle = transformers.Qwen4ExpForCausalLM.from_pretrained(folder).to("cuda")
    # Each module by name: what is above one on the disk must not be moved as a whole.
    device_map = {
        name: place if name.endswith(".ple") else 0
        for name in by_module(0) | by_module(2)
        if name not in ("model.layers.0", "model.layers.2")
    }
    words = {"device_map": device_map, "offload_folder": str(tmp_path)}
    with load(folder, placement=placement, **words) as model, torch.no_grad():
        assert [table.device.type for table in model.tables] == ["cuda", "cuda"]
        ids = IDS.cuda()
        assert torch.equal(model(input_ids=ids).logits, oracle(input_ids=ids).logits)
