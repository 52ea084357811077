"""Hugging Face's n-gram embedding module, the baseline of what a user runs today."""

from __future__ import annotations

import torch

from gramary.model.hashing import HashSpec


class ReturnIds(torch.nn.Module):
    """Stands for the embedding: gives back the ids, so that only the hash is timed."""

    weight = torch.empty(0)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the ids as an embedding of one column."""
        return ids.unsqueeze(-1)


def make_module(spec: HashSpec, rows: torch.Tensor | None) -> torch.nn.Module:
    """Returns `Qwen4ExpTextNGramEmbedding` of a geometry; called as `module(input_ids, None)`.

    Args:
        spec: geometry of the table.
        rows: [num_rows, row_dim] to look up in, not copied; None makes a module that returns the
            ids [B, T, num_heads].
    """
    from transformers.models.qwen4_exp import modeling_qwen4_exp as modeling
    from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

    config = Qwen4ExpTextConfig(
        vocab_size=spec.vocab_size,
        eos_token_id=spec.eos_token_id,
        ngram_size=spec.ngram_size,
        heads_per_ngram=spec.heads_per_ngram,
        ple_embed_dim=spec.embed_dim,
        ngram_vocab_size_base=spec.ngram_vocab_size_base,
        make_ngram_vocab_size_divisible_by=spec.rows_multiple,
        seed=spec.seed,
    )
    with torch.device("meta"):
        module = modeling.Qwen4ExpTextNGramEmbedding(config, spec.embed_dim, 0, spec.table_index)
    module.layer_multipliers = torch.tensor(spec.multipliers)
    module.ngram_heads_vocab_sizes = torch.tensor(spec.sizes)
    module.ngram_heads_offsets = torch.tensor(spec.offsets)
    if rows is None:
        module.ngram_embedding = ReturnIds()
    else:
        module.ngram_embedding = torch.nn.Embedding.from_pretrained(rows, freeze=True)
    return module
