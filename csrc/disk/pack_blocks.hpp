#pragma once
#include <cstdint>

namespace gramary {

// Shape of a pack's blocks: rows_per_block rows of row_bytes from the front, zeros, and in the last
// 8 bytes the XXH64 of what is before them, seeded with `seed` plus the block's number.
struct BlockShape {
    std::int64_t row_bytes;
    std::int64_t rows_per_block;
    std::int64_t block_bytes;
    std::uint64_t seed;
};

// Writes ceil(num_rows / rows_per_block) whole blocks, the first of them numbered first_block.
void pack_blocks(const BlockShape& shape, const std::uint8_t* rows, std::int64_t num_rows,
                 std::int64_t first_block, std::uint8_t* blocks);

// Index of the first block whose checksum is wrong, or -1.
std::int64_t find_bad_block(const BlockShape& shape, const std::uint8_t* blocks,
                            std::int64_t num_blocks, std::int64_t first_block);

}  // namespace gramary
