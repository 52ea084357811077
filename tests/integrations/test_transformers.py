"""A transformers model over a gramary table computes what it computes with an nn.Embedding.

The oracle is transformers' own class, loaded by its own `from_pretrained`; where the table is
quantised, it is loaded from the bf16 twin of the checkpoint and its embedding is then filled with
the decoded rows (transformers itself does not read the scales).
"""

import copy
import gc
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from benchmarks import peak
from gramary.errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    DependencyError,
    PlacementSyntaxError,
    TableNotFoundError,
    UnsupportedError,
)
from gramary.integrations import transformers as integration
from gramary.integrations.table_embedding import TableEmbedding
from gramary.integrations.transformers import load

MODELS = [
    {"codec": "bf16"},
    {"codec": "bf16", "conditional": True, "max_file_bytes": 1 << 20},
    {"codec": "fp16"},
    {"codec": "fp32", "ple_layer_ids": (1, 2), "max_file_bytes": 1 << 20},
    {"codec": "fp8", "ple_layer_ids": (1, 3)},
    {"codec": "fp8", "conditional": True, "scale_dtype": torch.float32},
    {"codec": "nvfp4"},
    {"codec": "nvfp4", "conditional": True, "ple_layer_ids": (1, 2), "max_file_bytes": 1 << 20},
]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def decoded_rows(folder: Path, layer_index: int) -> torch.Tensor:
    """Returns a table of a checkpoint in float32, decoded here by torch's own conversions."""
    tensors = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a mapping)
                if f"layers.{layer_index}.ple.ple_embedding.ngram_embedding." in name:
                    tensors[name.partition("ngram_embedding.")[2]] = opened.get_tensor(name)
    count = sum(name.endswith(".weight") for name in tensors)
    weight = torch.cat([tensors[f"shard_{index}.weight"] for index in range(count)])
    if "weight_scale_2" in tensors:
        blocks = [tensors[f"shard_{index}.weight_scale"] for index in range(count)]
        codes = torch.stack((weight & 15, weight >> 4), -1).flatten(-2)
        scaled = E2M1[codes.long()].unflatten(-1, (-1, 16)) * torch.cat(blocks).float()[..., None]
        return scaled.flatten(-2) * tensors["weight_scale_2"].float()
    return weight.float() * tensors.get("weight_scale", torch.tensor(1.0)).float()


def load_oracle(make_checkpoint: Any, options: dict[str, Any]) -> Any:
    """Returns transformers' own model, its embeddings filled with the decoded rows."""
    twin = dict(options)
    if options["codec"] in ("fp8", "nvfp4"):
        twin["codec"] = "bf16"
        twin.pop("scale_dtype", None)
    full = options.get("conditional", False)
    model_class = getattr(
        transformers, "Qwen4ExpForConditionalGeneration" if full else "Qwen4ExpForCausalLM"
    )
    model = model_class.from_pretrained(make_checkpoint(**twin))
    for module in model.modules():
        if type(module).__name__ == "Qwen4ExpTextNGramEmbedding":
            rows = decoded_rows(make_checkpoint(**options), module.layer_idx)
            with torch.no_grad():
                module.ngram_embedding.weight.copy_(rows)
    return model


def prompt(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Returns byte tokens [batch, length]."""
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(seed))


# Every model once, and the two ends of a placement for two of them: other tests show that bytes
# do not depend on it.
CASES = [(options, "host=100KiB,disk") for options in MODELS]
CASES += [(options, placement) for options in MODELS[::7] for placement in ("host", "disk")]


@pytest.mark.parametrize(("options", "placement"), CASES, ids=str)
def test_logits_and_tokens_equal_those_over_an_embedding(
    make_checkpoint: Any, options: dict[str, Any], placement: str
) -> None:
    oracle = load_oracle(make_checkpoint, options)
    with load(make_checkpoint(**options), placement=placement) as model:
        assert model.dtype == oracle.dtype
        assert not model.training
        tokens = prompt(2, 37)
        with torch.no_grad():
            logits = model(input_ids=tokens).logits
            expected = oracle(input_ids=tokens).logits
        assert torch.equal(logits, expected)
        assert len(logits.unique()) > 1000
        words = {"max_new_tokens": 8, "do_sample": False}
        assert torch.equal(model.generate(tokens, **words), oracle.generate(tokens, **words))


GENERATIONS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.9, "top_k": 30},
    "beams": {"num_beams": 3, "do_sample": False},
    "chunked prefill": {"prefill_chunk_size": 5, "do_sample": False},
    "static cache": {"cache_implementation": "static", "do_sample": False},
    "no cache": {"use_cache": False, "do_sample": False},
}


@pytest.fixture(scope="module")
def pair(make_checkpoint: Any) -> Any:
    """A model with its rows on disk, and its oracle."""
    options = {"codec": "fp8", "ple_layer_ids": (1, 3)}
    oracle = load_oracle(make_checkpoint, options)
    with load(make_checkpoint(**options), placement="host=50KiB,disk") as model:
        yield model, oracle


@pytest.mark.behaviour(22, 23)
@pytest.mark.parametrize("padding", [0, 9], ids=["full", "left-padded"])
@pytest.mark.parametrize("name", GENERATIONS)
def test_every_way_to_generate_gives_the_oracles_tokens(
    pair: tuple[Any, Any], name: str, padding: int
) -> None:
    """Behaviours 22 and 23: chunks, ragged batches and forks (beams) through `generate`."""
    model, oracle = pair
    tokens = prompt(2, 23, seed=1)
    mask = torch.ones_like(tokens)
    if padding:
        tokens[0, :padding] = model.config.get_text_config().pad_token_id
        mask[0, :padding] = 0
    results = []
    for candidate in (model, oracle):
        torch.manual_seed(5)
        results.append(
            candidate.generate(
                tokens,
                attention_mask=mask,
                max_new_tokens=7,
                return_dict_in_generate=True,
                output_logits=True,
                **GENERATIONS[name],
            )
        )
    got, expected = results
    assert torch.equal(got.sequences, expected.sequences)
    assert got.sequences.shape[1] > tokens.shape[1]
    assert len(got.logits) == len(expected.logits) > 0
    for step, (ours, theirs) in enumerate(zip(got.logits, expected.logits, strict=True)):
        assert torch.equal(ours, theirs), f"logits differ at step {step}"


def test_assisted_decoding_keeps_transformers_own_refusal(pair: tuple[Any, Any]) -> None:
    messages = []
    for model in pair:
        with pytest.raises(ValueError, match="assisted") as caught:
            model.generate(prompt(1, 5), assistant_model=pair[1], max_new_tokens=2)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.behaviour(10)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_come_in_the_dtype_asked_for(make_checkpoint: Any, dtype: torch.dtype) -> None:
    """Behaviour 10: the model's dtype, never the framework's default, and never the table's."""
    options = {"codec": "fp8", "ple_layer_ids": (1, 3)}
    tokens = prompt(1, 9)
    oracle = load_oracle(make_checkpoint, options)
    with load(make_checkpoint(**options), dtype=dtype) as model:
        assert model.dtype == dtype
        rows = embedding_of(model)(torch.tensor([[0, 5]]))
        assert rows.dtype == dtype
        assert torch.equal(rows[0], decoded_rows(make_checkpoint(**options), 0)[[0, 5]].to(dtype))
        with torch.no_grad():
            assert model(input_ids=tokens).logits.dtype == dtype
        if dtype == torch.bfloat16:
            assert torch.equal(model(input_ids=tokens).logits, oracle(input_ids=tokens).logits)
    assert torch.get_default_dtype() == torch.float32


def embedding_of(model: Any) -> TableEmbedding:
    """Returns the first table module of a model."""
    return next(module for module in model.modules() if isinstance(module, TableEmbedding))


def test_the_model_holds_no_rows_and_misses_no_weight(make_checkpoint: Any) -> None:
    for options in MODELS:
        model, report = load(make_checkpoint(**options), placement="disk", output_loading_info=True)
        with model:
            assert not any(report.values()), report
            assert not any("ngram_embedding" in name for name, _ in model.named_parameters())
            assert not any("ngram_embedding" in name for name in model.state_dict())
            assert all(parameter.device.type == "cpu" for parameter in model.parameters())
            weight = embedding_of(model).weight
            assert weight.device.type == "meta"
            assert weight.shape == (model.tables[0].spec.num_rows, model.tables[0].spec.row_dim)


def load_and_generate(path: str, placement: str) -> Any:
    """Target of the peak-memory test."""
    model = load(path, placement=placement)
    model.generate(torch.arange(16)[None], max_new_tokens=2, do_sample=False)
    return model


def test_model_to_dtype_is_followed_and_to_device_leaves_the_table(make_checkpoint: Any) -> None:
    with load(make_checkpoint(codec="bf16")) as model:
        embedding = embedding_of(model)
        assert model.to(torch.float32) is model
        assert embedding(torch.tensor([[1]])).dtype == torch.float32
        assert model.to("cpu") is model
        assert embedding(torch.tensor([[1]])).device.type == "cpu"


def test_a_deep_copy_shares_the_table(make_checkpoint: Any) -> None:
    model = load(make_checkpoint(codec="fp8"), placement="disk")
    copied = copy.deepcopy(model)
    tokens = prompt(1, 6)
    assert copied.tables[0] is model.tables[0]
    assert embedding_of(copied) is not embedding_of(model)
    expected = model(input_ids=tokens).logits
    del model
    gc.collect()
    assert torch.equal(copied(input_ids=tokens).logits, expected)
    copied.close()


def test_pickling_is_refused_with_the_remedy(pair: tuple[Any, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"transformers\.load\(path\)"):
        pickle.dumps(pair[0])


@pytest.mark.behaviour(36)
def test_save_pretrained_is_refused_with_the_remedy(pair: tuple[Any, Any], tmp_path: Path) -> None:
    """Behaviour 36: the message says how to save instead."""
    with pytest.raises(UnsupportedError, match=r"state_dict\(\)"):
        pair[0].save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_state_dict_goes_in_and_out(make_checkpoint: Any) -> None:
    with load(make_checkpoint(codec="fp8")) as model:
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(weights, strict=True)


def test_close_ends_the_tables_and_may_be_repeated(make_checkpoint: Any) -> None:
    model = load(make_checkpoint(codec="fp8", ple_layer_ids=(1, 3)), placement="disk")
    tables = model.tables
    assert len(tables) == 2
    model.close()
    model.close()
    with pytest.raises(ClosedError):
        model(input_ids=prompt(1, 4))
    for table in tables:
        with pytest.raises(ClosedError):
            table.lookup(torch.tensor([0]))


def test_a_collected_model_closes_its_tables(make_checkpoint: Any) -> None:
    model = load(make_checkpoint(codec="fp8"), placement="disk")
    (table,) = model.tables
    del model
    gc.collect()
    with pytest.raises(ClosedError):
        table.lookup(torch.tensor([0]))


def test_a_failed_open_leaves_no_table_behind(
    make_checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    real_open = integration.Table.from_source

    def open_first_only(*arguments: Any, **options: Any) -> Any:
        if opened:
            raise ArgumentError("the second table fails")
        opened.append(real_open(*arguments, **options))
        return opened[0]

    monkeypatch.setattr(integration.Table, "from_source", open_first_only)
    with pytest.raises(ArgumentError, match="the second table fails"):
        load(make_checkpoint(codec="fp8", ple_layer_ids=(1, 3)), placement="disk")
    with pytest.raises(ClosedError):
        opened[0].lookup(torch.tensor([0]))


def test_a_module_without_a_table_says_how_to_get_one() -> None:
    with pytest.raises(ClosedError, match=r"transformers\.load"):
        TableEmbedding(8, 16)(torch.tensor([0]))


@pytest.mark.behaviour(13)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"disable_mmap": True}, ArgumentError, "disable_mmap"),
        ({"state_dict": {}}, ArgumentError, "state_dict"),
        ({"placement": "attic"}, PlacementSyntaxError, "attic"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(
    make_checkpoint: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Behaviour 13: never silently dropped."""
    with pytest.raises(error, match=message):
        load(make_checkpoint(codec="bf16"), **options)


def test_a_hub_name_is_refused_with_the_remedy() -> None:
    with pytest.raises(ArgumentError, match="hf download"):
        load("some/model")


def test_another_model_is_refused(tmp_path: Path) -> None:
    transformers.LlamaConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="'llama'"):
        load(tmp_path)


def test_a_model_without_table_is_refused_before_its_weights_are_read(
    copy_checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_checkpoint(codec="bf16")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.ple_layer_ids = []
    config.save_pretrained(folder)
    monkeypatch.setattr(
        integration, "with_tables", lambda _: pytest.fail("weights were about to be read")
    )
    with pytest.raises(TableNotFoundError):
        load(folder)


def test_an_old_transformers_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # transformers puts a new module in its place now and then.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "5.3.0")
    with pytest.raises(DependencyError, match=r"5\.24.*5\.3\.0"):
        load(tmp_path)


def test_without_transformers_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DependencyError, match=r"gramary\[transformers\]"):
        load(tmp_path)


def test_the_table_never_enters_memory(make_checkpoint: Any) -> None:
    """A table of 64 MB left on disk: the process stays far below, and `host` pays for it once."""
    folder = str(make_checkpoint(codec="bf16", ngram_vocab_size_base=62_500))
    table_bytes = 64_000_000
    target = "tests.integrations.test_transformers:load_and_generate"
    on_disk = peak.measure_peak_bytes(target, path=folder, placement="disk")
    in_memory = peak.measure_peak_bytes(target, path=folder, placement="host")
    assert in_memory - on_disk > 0.8 * table_bytes
    assert in_memory - on_disk < 1.5 * table_bytes


@pytest.mark.behaviour(9)
def test_a_compiler_sees_no_rows_and_breaks_no_graph(pair: tuple[Any, Any]) -> None:
    """Behaviour 9: the module compiles as one graph whose only inputs are the ids."""
    embedding = embedding_of(pair[0])
    graphs = []

    def record(graph: Any, inputs: list[torch.Tensor]) -> Any:
        graphs.append(inputs)
        return graph.forward

    row_ids = torch.tensor([[3, 0], [7, 5]])
    compiled = torch.compile(embedding, backend=record, fullgraph=True)
    assert torch.equal(compiled(row_ids), embedding(row_ids))
    assert len(graphs) == 1
    largest = max(value.numel() for value in graphs[0] if isinstance(value, torch.Tensor))
    assert largest == row_ids.numel()


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["device", "host", "device=100KiB,host"])
@pytest.mark.parametrize("codec", ["bf16", "fp8", "nvfp4"])
def test_a_model_on_a_gpu_equals_its_oracle_there(
    make_checkpoint: Any, codec: str, placement: str
) -> None:
    options = {"codec": codec, "ple_layer_ids": (1, 3)}
    oracle = load_oracle(make_checkpoint, options).to("cuda")
    folder = make_checkpoint(**options)
    with load(folder, placement=placement, device_map={"": "cuda"}) as model:
        assert all(table.device.type == "cuda" for table in model.tables)
        tokens = prompt(2, 19).cuda()
        with torch.no_grad():
            assert torch.equal(model(input_ids=tokens).logits, oracle(input_ids=tokens).logits)
        words = {"max_new_tokens": 6, "do_sample": False}
        assert torch.equal(model.generate(tokens, **words), oracle.generate(tokens, **words))


@pytest.mark.gpu
def test_a_model_moved_to_a_gpu_keeps_its_table_on_the_cpu(make_checkpoint: Any) -> None:
    options = {"codec": "fp8", "ple_layer_ids": (1, 3)}
    oracle = load_oracle(make_checkpoint, options).to("cuda")
    with load(make_checkpoint(**options), placement="host=100KiB,disk") as model:
        model.to("cuda")
        assert model.tables[0].device.type == "cpu"
        tokens = prompt(2, 19).cuda()
        with torch.no_grad():
            assert torch.equal(model(input_ids=tokens).logits, oracle(input_ids=tokens).logits)
