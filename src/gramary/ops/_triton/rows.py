"""Encoded rows to decoded rows inside a kernel: the part that embed, lookup and decode share.

A program holds the addresses of BR rows and walks them in chunks of BE values. `load_rows` loads
all chunks before `store_rows` decodes the first, so that a program's reads are under way together.
Per thread, that is 8 bytes of an fp8 row in and 16 bytes of a bfloat16 row out.

Two addresses stand for rows that are not read but made of one byte: ZERO_ROW of 0x00, and
WRONG_ROW of 0xFF, which decodes to NaN in every codec.
"""

import triton
import triton.language as tl

from gramary.ops._triton.codes import e2m1_values, e4m3_value, e4m3_values, repeat_eight, round_to

ZERO_ROW = tl.constexpr(0)
WRONG_ROW = tl.constexpr(1)


@triton.jit
def load_integers(address, index, end, BITS: tl.constexpr, ALIGN: tl.constexpr):
    """Integers of BITS bits at `index` [n] of rows [BR, 1]; those from `end` on are not read."""
    if BITS == 64:
        p_row = address.to(tl.pointer_type(tl.int64))
    elif BITS == 32:
        p_row = address.to(tl.pointer_type(tl.int32))
    elif BITS == 16:
        p_row = address.to(tl.pointer_type(tl.int16))
    else:
        p_row = address.to(tl.pointer_type(tl.int8))
    pointers = tl.multiple_of(p_row + index[None, :], [1, ALIGN])
    mask = (address > WRONG_ROW) & (index[None, :] < end)
    fill = tl.where(address == WRONG_ROW, -1, 0).to(p_row.dtype.element_ty)
    return tl.load(pointers, mask=mask, other=fill)


@triton.jit
def load_words(address, i_word, num_bytes, ALIGN: tl.constexpr):
    """32-bit words i_word [n] of rows [BR, 1] that may start at any byte.

    A word that lies across two aligned ones is shifted out of both. An aligned word that holds a
    byte of the row is safe to read whole: it never lies across two pages.
    """
    if ALIGN >= 4:
        return load_integers(address, i_word, num_bytes // 4, 32, ALIGN)
    else:
        # ZERO_ROW and WRONG_ROW stay as they are.
        offset = tl.where(address > WRONG_ROW, address & 3, 0).to(tl.int32)
        aligned = address - offset
        end = (num_bytes + offset + 3) // 4
        low = load_integers(aligned, i_word, end, 32, 4).to(tl.int64) & 0xFFFFFFFF
        high = load_integers(aligned, i_word + 1, end, 32, 4).to(tl.int64) << 32
        return ((high | low) >> (8 * offset).to(tl.int64)).to(tl.int32)


@triton.jit
def load_chunk(
    address, first, CODEC: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr, BE: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """What decode_chunk needs for the BE values from `first` on, as a tuple of integer blocks."""
    if CODEC == "fp8":
        i_word = first // 4 + tl.arange(0, BE // 4)
        return (load_words(address, i_word, DIM, ALIGN),)
    elif CODEC == "nvfp4":
        # A word is eight codes; two words share a block scale.
        i_word = first // 8 + tl.arange(0, BE // 8)
        words = load_words(address, i_word, DIM // 2, ALIGN)
        p_scales = tl.where(address > WRONG_ROW, address + DIM // 2, address)
        return (words, load_integers(p_scales, i_word // 2, DIM // 16, 8, 1))
    else:
        i_value = first + tl.arange(0, BE)
        return (load_integers(address, i_value, DIM, BITS, ALIGN),)


@triton.jit
def decode_chunk(chunk, scale, dtype: tl.constexpr, CODEC: tl.constexpr, BR: tl.constexpr,
                 BE: tl.constexpr):  # fmt: skip
    """Loaded integers -> values [BR, BE] in `dtype`; each product is rounded to float32."""
    if CODEC == "copy":
        return chunk[0]
    else:
        if CODEC == "fp8":
            values = (e4m3_values(chunk[0]) * scale).reshape(BR, BE)
        elif CODEC == "nvfp4":
            block_scales = repeat_eight(e4m3_value(chunk[1].to(tl.int32)))
            values = ((e2m1_values(chunk[0]) * block_scales) * scale).reshape(BR, BE)
        elif CODEC == "bf16":
            values = (chunk[0].to(tl.int32) << 16).to(tl.float32, bitcast=True)
        elif CODEC == "fp16":
            values = chunk[0].to(tl.float16, bitcast=True).to(tl.float32)
        else:
            values = chunk[0].to(tl.float32, bitcast=True)
        return round_to(values, dtype)


@triton.jit
def load_rows(
    address, CODEC: tl.constexpr, DIM: tl.constexpr, BITS: tl.constexpr, BE: tl.constexpr,
    ALIGN: tl.constexpr,
):  # fmt: skip
    """Every chunk of the rows at `address` [BR]."""
    NUM_CHUNKS: tl.constexpr = (DIM + BE - 1) // BE
    chunks = ()
    for i_c in tl.static_range(NUM_CHUNKS):
        chunk = load_chunk(address[:, None], i_c * BE, CODEC, DIM, BITS, BE, ALIGN)
        chunks = chunks + (chunk,)
    return chunks


@triton.jit
def store_rows(
    chunks, p_out, i_out, scale, CODEC: tl.constexpr, DIM: tl.constexpr, BR: tl.constexpr,
    BE: tl.constexpr,
):  # fmt: skip
    """Decodes loaded chunks into rows i_out [BR] of the output; a row below 0 is not written."""
    NUM_CHUNKS: tl.constexpr = (DIM + BE - 1) // BE
    for i_c in tl.static_range(NUM_CHUNKS):
        values = decode_chunk(chunks[i_c], scale, p_out.dtype.element_ty, CODEC, BR, BE)
        i_value = i_c * BE + tl.arange(0, BE)
        mask = (i_out >= 0)[:, None] & (i_value < DIM)[None, :]
        tl.store(p_out + (i_out * DIM)[:, None] + i_value[None, :], values, mask=mask)
