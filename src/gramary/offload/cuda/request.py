"""A stream-lane request, written by the GPU: row ids hashed into the slot, then its number.

The number is a counter in device memory that the kernel itself increments, so that a replay of a
captured graph is a new request without the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gramary.flat_batch import FlatBatch
from gramary.native.ring import Phase, RingFields
from gramary.native.rows import RowExtent
from gramary.offload.cuda.loading import Launch, launch
from gramary.offload.cuda.slots import DeviceSlot
from gramary.offload.cuda.words import behind_fence, is_last_program, store_int64
from gramary.ops._triton.hash import (
    WRONG_ID,
    HashConstants,
    batch_sizes,
    hash_rows,
    tokens_and_heads,
)
from gramary.ops._triton.sticky_error import report_first

_NUMBER = tl.constexpr(RingFields.SLOT_NUMBER)
_NUM_TOKENS = tl.constexpr(RingFields.SLOT_NUM_TOKENS)
_STATES = tl.constexpr(RingFields.SLOT_STATES)
_REQUESTED = tl.constexpr(int(Phase.REQUESTED))
_NUM_PHASES = tl.constexpr(RingFields.NUM_PHASES)

_BLOCK_TOKENS = 8


@triton.jit(do_not_specialize=["p_tokens", "p_query_start_loc", "p_history", "p_error", "p_counter",
                               "p_count", "T", "R", "tokens_per_request", "num_steps",
                               "vocab_size", "eos_token_id", "ids_address", "header_address",
                               "device_first", "device_end"])  # fmt: skip
def request_kernel(
    p_tokens, p_query_start_loc, p_history, p_constants, p_error, p_ids, p_counter, p_count,
    T: tl.int32, R: tl.int32, tokens_per_request: tl.int32, num_steps: tl.int32,
    vocab_size: tl.int64, eos_token_id: tl.int64,
    ids_address: tl.int64, header_address: tl.int64,
    device_first: tl.int64, device_end: tl.int64,
    NGRAM: tl.constexpr, HEADS: tl.constexpr, HAS_HISTORY: tl.constexpr,
    NUM_TABLES: tl.constexpr, BT: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Hashes BT tokens for BH heads a program; with NUM_TABLES > 0 the last one writes the header.

    The ids go to `p_ids` for the consumer, and to the slot for the service, which is shown -1 for
    rows that it need not fetch: padding, rows in the device's own memory, wrong tokens.
    """
    i_t, i_h, i_row = tokens_and_heads(T, (NGRAM - 1) * HEADS, BT, BH)
    row_ids, kind, index, value = hash_rows(
        i_t, i_t < T, i_h, p_tokens, p_query_start_loc, p_history, p_constants, R,
        tokens_per_request, num_steps, vocab_size, eos_token_id, NGRAM, HEADS, HAS_HISTORY,
    )  # fmt: skip
    tl.store(p_ids + i_row, row_ids, mask=i_row >= 0)
    is_fetched = (row_ids >= 0) & ((row_ids < device_first) | (row_ids >= device_end))
    p_shown = tl.cast(ids_address, tl.int64).to(tl.pointer_type(tl.int64))
    tl.store(p_shown + i_row, tl.where(is_fetched, row_ids, -1), mask=i_row >= 0)
    report_first(p_error, row_ids == WRONG_ID, kind, index, value)
    if NUM_TABLES > 0:
        if is_last_program(p_count):
            header = tl.cast(header_address, tl.int64)
            number = tl.load(p_counter) + 1
            tl.store(p_counter, number)
            store_int64(header + _NUM_TOKENS, tl.cast(T, tl.int64))
            for i_l in tl.static_range(NUM_TABLES):
                store_int64(header + _STATES + 8 * i_l, number * _NUM_PHASES + _REQUESTED)
            # Whoever reads the number finds ids and states of all tables behind it.
            store_int64(header + _NUMBER, behind_fence(number))


def write_request(
    slot: DeviceSlot,
    table_index: int,
    constants: HashConstants,
    batch: FlatBatch,
    *,
    device_extent: RowExtent,
    is_last_table: bool,
    launch: Launch = launch,
) -> None:
    """Writes one table's ids of a request, and behind the last table's its number.

    The number is the doorbell: the service answers a slot whose number it has not answered.

    Args:
        slot: the stream's slot.
        table_index: which table's ids.
        constants: the table's hash constants, on the tokens' device.
        batch: there; padding is what lies behind query_start_loc[-1].
        device_extent: the table's rows in the device's own memory, which nobody has to bring.
        is_last_table: whether the request is complete with this table.
        launch: what is done with the kernel and its arguments; `load` only loads it.
    """
    # An empty batch is a request too: somebody waits for its answer.
    grid = (max(1, triton.cdiv(batch.token_ids.shape[0], _BLOCK_TOKENS)),)
    launch(
        request_kernel,
        grid,
        batch.token_ids,
        batch.query_start_loc,
        batch.token_ids if batch.history is None else batch.history,
        constants.values,
        slot.token_errors[table_index],
        slot.ids[table_index],
        slot.counter,
        slot.request_programs,
        *batch_sizes(batch),
        constants.vocab_size,
        constants.eos_token_id,
        slot.ids_address(table_index),
        slot.header_address,
        device_extent.first_row,
        device_extent.end_row,
        NGRAM=constants.ngram_size,
        HEADS=constants.heads_per_ngram,
        HAS_HISTORY=batch.history is not None,
        NUM_TABLES=slot.num_tables if is_last_table else 0,
        BT=_BLOCK_TOKENS,
        BH=triton.next_power_of_2(constants.num_heads),
    )


__all__ = ["request_kernel", "write_request"]
