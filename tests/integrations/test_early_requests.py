"""Prompts that `generate` reads in chunks, their rows requested ahead: same tokens, told why."""

import copy
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache, Qwen4ExpForCausalLM

from gramary.errors import ClosedError, RowFetchError, TokenError
from gramary.integrations.prompt_chunks import chunks_of_prompts
from gramary.integrations.table_embedding import TableEmbedding
from gramary.integrations.transformers import load, open_tables

PLACEMENTS = ("host", "disk", "host=50KiB,disk")
OPTIONS: dict[str, Any] = {"codec": "fp8", "ple_layer_ids": (1, 3)}
PAD = 257
EOS = 256
HOST_LANE = "host: prompt-only"


def prompts(*lengths: int, seed: int = 0, width: int | None = None) -> dict[str, torch.Tensor]:
    """Returns byte tokens with EOS here and there, padded on the left to the longest."""
    generator = torch.Generator().manual_seed(seed)
    width = width or max(lengths)
    tokens = torch.randint(0, 256, (len(lengths), width), generator=generator)
    tokens[torch.rand(tokens.shape, generator=generator) < 0.1] = EOS
    mask = torch.arange(width)[None] >= width - torch.tensor(lengths)[:, None]
    return {"input_ids": tokens.where(mask, PAD), "attention_mask": mask.long()}


def write(model: Any, inputs: dict[str, torch.Tensor], chunk: int | None, **options: Any) -> Any:
    """Returns what greedy decoding gives, logits included."""
    return model.generate(
        **inputs,
        prefill_chunk_size=chunk,
        max_new_tokens=4,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )


def assert_same(got: Any, expected: Any) -> None:
    """Same tokens, same bits of every logit."""
    assert torch.equal(got.sequences, expected.sequences)
    assert len(got.logits) == len(expected.logits) > 0
    for step, (ours, theirs) in enumerate(zip(got.logits, expected.logits, strict=True)):
        assert torch.equal(ours, theirs), f"logits differ at step {step}"


@pytest.fixture(scope="module")
def late(make_checkpoint: Any) -> Iterator[Any]:
    """A model that requests nothing early."""
    with load(make_checkpoint(**OPTIONS), prefill_early_request=False) as model:
        yield model


@pytest.fixture
def early(make_checkpoint: Any) -> Iterator[Any]:
    """A model with rows in memory and on disk, that requests early."""
    with load(make_checkpoint(**OPTIONS), placement="host=50KiB,disk") as model:
        yield model


@pytest.mark.behaviour(22, 25)
@pytest.mark.parametrize("chunk", [1, 4, 7, 100])
@pytest.mark.parametrize("lengths", [(23,), (23, 9, 1)], ids=["one", "left-padded"])
def test_tokens_are_the_same_with_the_option_on_and_off(
    early: Any, late: Any, lengths: tuple[int, ...], chunk: int
) -> None:
    """Behaviours 22 and 25: chunks of a token, padding longer than chunks, one chunk for all."""
    inputs = prompts(*lengths)
    num_chunks = -(-23 // chunk)
    assert_same(write(early, inputs, chunk), write(late, inputs, chunk))
    assert early.early_request_stats() == {
        "prompts": {"early": 1}, "chunks": num_chunks, "lanes": {HOST_LANE: num_chunks},
    }  # fmt: skip


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_gives_the_same_tokens(
    make_checkpoint: Any, late: Any, placement: str
) -> None:
    inputs = prompts(30, 12, seed=2)
    with load(make_checkpoint(**OPTIONS), placement=placement) as model:
        assert_same(write(model, inputs, 8), write(late, inputs, 8))
        assert model.early_request_stats()["lanes"] == {HOST_LANE: 4}


def test_the_next_chunk_is_requested_while_one_computes(early: Any) -> None:
    """At the start of each forward the rows of two chunks are asked for: its own and the next."""
    asked = []

    def count(*_: Any) -> None:
        asked.append(early.early_request_stats()["lanes"].get(HOST_LANE, 0))

    hook = early.model.register_forward_pre_hook(count)
    write(early, prompts(40), 10)
    hook.remove()
    assert asked[:4] == [2, 3, 4, 4]


def test_a_longer_or_wider_prompt_gets_a_larger_connector(early: Any, late: Any) -> None:
    total = 0
    for lengths, chunk in (((5,), 5), ((31, 31, 30), 10), ((6,), 2)):
        inputs = prompts(*lengths, seed=sum(lengths))
        assert_same(write(early, inputs, chunk), write(late, inputs, chunk))
        total += -(-max(lengths) // chunk)
    assert early.early_request_stats()["lanes"] == {HOST_LANE: total}


@pytest.mark.parametrize("words", [
    {"num_beams": 3}, {"cache_implementation": "static"}, {"use_cache": True, "num_beams": 2},
], ids=str)  # fmt: skip
def test_every_way_to_generate(early: Any, late: Any, words: dict[str, Any]) -> None:
    inputs = prompts(20, 11, seed=3)
    got, expected = (write(model, inputs, 6, **words) for model in (early, late))
    assert torch.equal(got.sequences, expected.sequences)
    assert early.early_request_stats()["chunks"] == 4


@pytest.mark.behaviour(22)
@pytest.mark.parametrize("sends_all", [True, False], ids=["whole", "new tokens"])
def test_a_second_turn_continues_from_the_cache(early: Any, late: Any, sends_all: bool) -> None:
    """Behaviour 22: the tokens before come from the cache, and two of them matter."""
    first, second = prompts(17, 17, seed=4), prompts(13, 13, seed=5)
    results = []
    for model in (early, late):
        cache = DynamicCache(config=model.config.get_text_config())
        said = write(model, first, 5, cache=cache).sequences
        whole = torch.cat([said, second["input_ids"]], 1)
        # The last token that was written is not in the cache yet.
        tokens = whole if sends_all else whole[:, cache.get_seq_length() :]
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(whole)}
        results.append(write(model, inputs, 5, cache=cache))
    assert_same(*results)
    assert early.early_request_stats()["prompts"] == {"early": 2}
    # 17 tokens, then 13 and the one before them.
    assert early.early_request_stats()["chunks"] == 4 + 3


def test_reasons_to_look_rows_up_are_told(early: Any, late: Any) -> None:
    inputs = prompts(9)
    write(early, inputs, None)
    write(late, inputs, 4)
    with pytest.raises(ValueError, match="without a cache"):
        early.generate(**inputs, use_cache=False, max_new_tokens=2, prefill_chunk_size=4)
    assert early.early_request_stats() == {
        "prompts": {"no prefill_chunk_size": 1, "no cache": 1}, "chunks": 0, "lanes": {},
    }  # fmt: skip
    assert set(late.early_request_stats()["prompts"]) == {"prefill_early_request is off"}


def test_tokens_changed_on_the_way_are_looked_up(early: Any, late: Any) -> None:
    """A hook that hashes other tokens than the prompt's: never another token's rows."""

    def change(_module: Any, arguments: Any, words: dict[str, Any]) -> Any:
        hidden, tokens, *rest = arguments
        return (hidden, (tokens + 1) % 256, *rest), words

    inputs, results = prompts(20, seed=6), []
    for model in (early, late):
        plain = write(model, inputs, 6)
        ple = next(m for m in model.modules() if type(m).__name__ == "Qwen4ExpTextPLELayer")
        hook = ple.register_forward_pre_hook(change, with_kwargs=True)
        changed = write(model, inputs, 6)
        hook.remove()
        assert not torch.equal(plain.logits[0], changed.logits[0])
        results += [[changed, plain, write(model, inputs, 6)]]
    for got, expected in zip(*results, strict=True):
        assert_same(got, expected)
    # Two prompts of four chunks were taken as foretold, and nothing of the changed one.
    assert early.early_request_stats()["chunks"] == 8


def test_a_prompt_read_inside_a_forward_of_another_gets_its_own_rows(early: Any, late: Any) -> None:
    """What was requested for the outer prompt is then given up, and nobody gets another's."""
    outer, inner = prompts(20, seed=12), prompts(15, seed=13)
    results: list[list[Any]] = []
    for model in (early, late):
        kept: list[Any] = []

        def read_another(*_: Any, model: Any = model, kept: list[Any] = kept) -> None:
            if not kept:
                kept.append(None)
                kept[0] = write(model, inner, 4)

        hook = model.model.register_forward_pre_hook(read_another)
        kept.append(write(model, outer, 5))
        hook.remove()
        results.append(kept)
    for got, expected in zip(*results, strict=True):
        assert_same(got, expected)
    prompts_read = early.early_request_stats()["prompts"]
    assert prompts_read == {"early": 1, "another prompt is being read": 1}
    assert connector_of(early).stats()["open_tickets"] == 0


def test_two_threads_read_prompts_at_once(early: Any, late: Any) -> None:
    """One of them is early, the other looks its rows up; neither gets the other's."""
    inputs = [prompts(40, seed=seed) for seed in (7, 8)]
    expected = [write(late, one, 5) for one in inputs]
    inside, go_on = threading.Event(), threading.Event()

    def pause(*_: Any) -> None:
        if threading.current_thread() is thread and not inside.is_set():
            inside.set()
            assert go_on.wait(30)

    results: list[Any] = [None, None]

    def run() -> None:
        results[0] = write(early, inputs[0], 5)

    thread = threading.Thread(target=run)
    hook = early.model.register_forward_pre_hook(pause)
    thread.start()
    assert inside.wait(30)
    results[1] = write(early, inputs[1], 5)
    go_on.set()
    thread.join()
    hook.remove()
    for got, wanted in zip(results, expected, strict=True):
        assert_same(got, wanted)
    stats = early.early_request_stats()
    assert stats["prompts"] == {"early": 1, "another prompt is being read": 1}
    assert stats["chunks"] == 8


def test_a_forward_that_fails_leaves_nothing_under_way(early: Any, late: Any) -> None:
    inputs = prompts(30, seed=9)
    calls = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    for layer in (0, 1):
        calls.clear()
        ple = [m for m in early.modules() if type(m).__name__ == "Qwen4ExpTextPLELayer"][layer]
        hook = ple.register_forward_pre_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            write(early, inputs, 6)
        hook.remove()
        assert connector_of(early).stats()["open_tickets"] == 0
        assert_same(write(early, inputs, 6), write(late, inputs, 6))


@pytest.mark.behaviour(22)
@pytest.mark.parametrize(("place", "chunk"), [
    (0, 3), (4, 1), (7, 5), (19, 6), (7, 100), (7, None),
])  # fmt: skip
def test_kind_4_a_token_added_to_the_model_is_read_as_transformers_reads_it(
    make_checkpoint: Any, place: int, chunk: int | None
) -> None:
    """Kind 4 and behaviour 22: in one piece, in any chunk, and in the cache of a turn before.

    transformers' own model reads the same chunks: another cut rounds in another order, and where
    two logits are equal in bfloat16 that alone decides which token is the likeliest.
    """
    folder, inputs = make_checkpoint(ple_layer_ids=(1, 3)), prompts(20, seed=14)
    why_late = "a token outside the table's vocabulary" if chunk else "no prefill_chunk_size"
    with load(folder, placement="disk") as model:
        oracle = Qwen4ExpForCausalLM.from_pretrained(folder)
        vocab_size = oracle.config.vocab_size
        resize_alike(model, oracle, vocab_size + 8)
        inputs["input_ids"][0, place] = vocab_size + 3
        for got, expected in zip(
            *(two_turns(one, inputs, chunk) for one in (model, oracle)), strict=True
        ):
            assert_same(got, expected)
        counts = model.early_request_stats()["prompts"]
        assert counts[why_late] >= 1
        # What the second turn's chunks need of the first one's added token decides.
        late = prompts(20, seed=15)
        assert_same(write(model, late, chunk or 5), write(oracle, late, chunk or 5))
        assert model.early_request_stats()["prompts"]["early"] >= 1


def resize_alike(model: Any, oracle: Any, vocab_size: int) -> None:
    """Adds the same random tokens to both models."""
    for one in (model, oracle):
        torch.manual_seed(16)
        one.resize_token_embeddings(vocab_size, mean_resizing=False)
    for ours, theirs in (
        (model.get_input_embeddings(), oracle.get_input_embeddings()),
        (model.get_output_embeddings(), oracle.get_output_embeddings()),
    ):
        assert torch.equal(ours.weight, theirs.weight)


def two_turns(model: Any, inputs: dict[str, torch.Tensor], chunk: int | None) -> list[Any]:
    """Returns what a model writes, and what it writes after more words, from the same cache."""
    cache = DynamicCache(config=model.config.get_text_config())
    first = write(model, inputs, chunk, cache=cache)
    more = {"input_ids": torch.cat([first.sequences, prompts(9)["input_ids"]], 1)}
    return [first, write(model, more, chunk, cache=cache)]


@pytest.mark.behaviour(32)
@pytest.mark.parametrize("position", range(0, 30, 5))
def test_a_prompt_with_a_wrong_token_fails_alone(early: Any, late: Any, position: int) -> None:
    """Behaviour 32: in whichever chunk it stands, the next prompt is read as if it never came."""
    inputs = prompts(30, seed=9)
    wrong = {name: tensor.clone() for name, tensor in inputs.items()}
    wrong["input_ids"][0, position] = 10**6
    write(early, inputs, 6)
    for _ in range(3):
        with pytest.raises((TokenError, IndexError)):
            write(early, wrong, 6)
        assert connector_of(early).stats()["open_tickets"] == 0
    assert_same(write(early, inputs, 6), write(late, inputs, 6))


@pytest.mark.behaviour(32)
def test_a_prompt_that_cannot_be_requested_fails_alone(early: Any, late: Any) -> None:
    """Behaviour 32: what an earlier prompt left in the connector ends with one error."""
    inputs = prompts(30, seed=11)
    write(early, inputs, 6)
    connector_of(early).service.stop()
    with pytest.raises(RowFetchError, match="stopped"):
        write(early, inputs, 6)
    assert_same(write(early, inputs, 6), write(late, inputs, 6))


def connector_of(model: Any) -> Any:
    """Returns the connector of a model that has read a prompt in chunks."""
    embedding = next(m for m in model.modules() if isinstance(m, TableEmbedding))
    return embedding.require_shared()._connector


@pytest.mark.behaviour(32)
def test_rows_that_cannot_be_had_raise_and_the_next_prompt_is_right(early: Any, late: Any) -> None:
    """Behaviour 32: a failing read is an error of this prompt; later ones are not poisoned."""
    inputs = prompts(30, seed=10)
    write(early, inputs, 6)
    connector_of(early).service.native.set_script(fail_every=4)
    with pytest.raises(RowFetchError, match="restart"):
        write(early, inputs, 6)
    assert_same(write(early, inputs, 6), write(late, inputs, 6))
    assert early.early_request_stats()["prompts"] == {"early": 3}


def test_closing_ends_threads_in_any_order(make_checkpoint: Any) -> None:
    """A copy shares tables and connector; a collected, closed or moved model leaves no thread."""

    def num_threads() -> int:
        gc.collect()
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))

    inputs, folder = prompts(12), make_checkpoint(**OPTIONS)
    model = load(folder, placement="disk")
    write(model, inputs, None)
    on_disk = num_threads()
    write(model, inputs, 4)
    copied = copy.deepcopy(model)
    assert_same(write(copied, inputs, 4), write(model, inputs, 4))
    assert connector_of(copied) is connector_of(model)
    assert num_threads() > on_disk
    del copied
    gc.collect()
    write(model, inputs, 4)
    open_tables(model, folder, placement="host")
    write(model, inputs, None)
    in_memory = num_threads()
    assert in_memory <= on_disk + 1
    write(model, inputs, 4)
    assert num_threads() > in_memory
    model.tables[1].close()
    with pytest.raises(ClosedError):
        write(model, inputs, 4)
    model.close()
    with pytest.raises(ClosedError):
        write(model, inputs, 4)
    del model
    assert num_threads() <= in_memory


def test_chunks_are_those_of_the_prompt(make_checkpoint: Any) -> None:
    """By hand: histories behind each other, padding as EOS but in a chunk of one token."""
    with load(make_checkpoint(codec="fp8")) as model:
        spec = model.tables[0].spec
    tokens = torch.tensor([[9, 9, 1, 2, 3], [4, 5, 6, 7, 8]])
    is_token = torch.tensor([[False, False, True, True, True], [True] * 5])
    first, second, last = chunks_of_prompts(spec, tokens, 2, is_token=is_token)
    assert first.token_ids.tolist() == [EOS, EOS, 4, 5]
    assert first.history.tolist() == [[EOS, EOS], [EOS, EOS]]
    assert second.token_ids.tolist() == [1, 2, 6, 7]
    assert second.history.tolist() == [[EOS, EOS], [4, 5]]
    assert last.token_ids.tolist() == [3, 8]
    assert last.history.tolist() == [[1, 2], [6, 7]]
    assert last.query_start_loc.tolist() == [0, 1, 2]
    known = torch.tensor([[1, 2], [3, 4]])
    ones = chunks_of_prompts(spec, tokens[:, :2], 1, is_token=is_token, history=known)
    assert [batch.token_ids.tolist() for batch in ones] == [[9, 4], [9, 5]]
    assert [batch.history.tolist() for batch in ones] == [[[1, 2], [3, 4]], [[2, 9], [4, 4]]]
    assert chunks_of_prompts(spec, tokens[:, :0], 3) == []


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["device", "host", "device=100KiB,host=50KiB,disk"])
def test_tokens_are_the_same_on_a_gpu(make_checkpoint: Any, placement: str) -> None:
    inputs = {name: tensor.cuda() for name, tensor in prompts(33, 20, seed=11).items()}
    folder, words = make_checkpoint(**OPTIONS), {"placement": placement, "device_map": {"": "cuda"}}
    with load(folder, **words) as model, load(folder, prefill_early_request=False, **words) as off:
        for chunk in (6, 6, 33):
            assert_same(write(model, inputs, chunk), write(off, inputs, chunk))
        assert model.early_request_stats()["chunks"] == 6 + 6 + 1


@pytest.mark.gpu
def test_tokens_changed_on_the_way_are_an_error_on_a_gpu(make_checkpoint: Any) -> None:
    """No host check in the middle of a prompt: it is told before a token is picked."""

    def change(_module: Any, arguments: Any, words: dict[str, Any]) -> Any:
        hidden, tokens, *rest = arguments
        return (hidden, (tokens + 1) % 256, *rest), words

    inputs = {name: tensor.cuda() for name, tensor in prompts(20, seed=6).items()}
    with load(make_checkpoint(**OPTIONS), device_map={"": "cuda"}) as model:
        expected = write(model, inputs, 6)
        ple = next(m for m in model.modules() if type(m).__name__ == "Qwen4ExpTextPLELayer")
        hook = ple.register_forward_pre_hook(change, with_kwargs=True)
        with pytest.raises(RowFetchError, match="prefill_early_request=False"):
            write(model, inputs, 6)
        hook.remove()
        assert_same(write(model, inputs, 6), expected)
