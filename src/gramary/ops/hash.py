"""From tokens to row ids."""

from __future__ import annotations

import torch

from gramary.errors import UnsupportedError
from gramary.flat_batch import FlatBatch
from gramary.model.hashing import HashSpec
from gramary.ops._cpu import hash as cpu_backend
from gramary.ops.result_buffer import check_out, refuse_overlap, require_in_memory


def ngram_ids(
    spec: HashSpec,
    token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    history: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the table rows of every token in a flat batch.

    With t0 the current token and t1, t2, ... the ones before it, head h of n-gram length n has
    row `floor_mod(t0*m0 ^ t1*m1 ^ ... ^ t(n-1)*m(n-1), sizes[h]) + offsets[h]` in wrapping int64.
    A predecessor behind an EOS, or before the start of the stream, is replaced by EOS.

    Args:
        spec: geometry and hash constants.
        token_ids: int32 or int64 [T], the requests' tokens back to back, on the CPU or a CUDA
            device; 0 to vocab_size-1. Tokens from query_start_loc[-1] on are padding and may hold
            anything.
        query_start_loc: int32 [R+1] on the same device; request r has the tokens
            query_start_loc[r] to query_start_loc[r+1]-1. Begins with 0, never falls; requests may
            be empty.
        history: int32 or int64 [R, ngram_size-1] on the same device, the tokens before each
            request's, oldest first, EOS where there are none; None means that every request
            begins its stream. The history of an empty request is not read.
        out: int64 [T, num_heads] on the same device, contiguous, to be overwritten; it shares no
            memory with the arguments.

    Returns:
        int64 [T, num_heads], `out` if given; -1 for padding. On CUDA it is valid in the order of
        the current stream, and -2 stands where a token that is hashed lies outside the vocabulary.

    Raises:
        TokenError: on the CPU, a token or a history token lies outside the vocabulary; the
            message names the first. `out` is then undefined.
        ArgumentError: a shape, dtype or device is wrong, `out` shares memory with an argument, or,
            on the CPU, query_start_loc does not begin with 0, falls or passes T.
        UnsupportedError: the tensors lie on another kind of device.

    Source: `Qwen4ExpTextNGramEmbedding.forward` of Hugging Face transformers 5.24.
    """
    batch = FlatBatch.checked(spec.history_length, token_ids, query_start_loc, history)
    if out is not None:
        check_out(out, (token_ids.numel(), spec.num_heads), torch.int64, token_ids.device)
        require_in_memory(out)
        refuse_overlap(out, token_ids=token_ids, query_start_loc=query_start_loc, history=history)
    return row_ids_of(spec, batch, out)


def row_ids_of(spec: HashSpec, batch: FlatBatch, out: torch.Tensor | None = None) -> torch.Tensor:
    """Returns what `ngram_ids` does, of arguments that were checked."""
    device = batch.token_ids.device
    if out is None:
        shape = (batch.token_ids.numel(), spec.num_heads)
        out = torch.empty(shape, dtype=torch.int64, device=device)
        # It is a stand-in where a mode makes every new tensor one.
        if type(out) is not torch.Tensor:
            require_in_memory(out)
    if device.type == "cpu":
        cpu_backend.ngram_ids(spec, batch, out)
    elif device.type == "cuda":
        from gramary.ops._triton import hash as triton_backend

        constants = triton_backend.constants_of(spec, device)
        triton_backend.ngram_ids(constants, batch, out)
    else:
        raise UnsupportedError(
            f"token_ids: expected a tensor on the CPU or a CUDA device, got {device}"
        )
    return out


__all__ = ["ngram_ids", "row_ids_of"]
