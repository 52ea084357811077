#include "disk/pack_blocks.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/thread_pool.hpp"
#include "disk/xxh64.hpp"

namespace gramary {
namespace {

constexpr std::int64_t kChecksumBytes = 8;
constexpr std::int64_t kGrainBytes = 256 << 10;

std::int64_t grain_of(const BlockShape& shape) {
    return std::max<std::int64_t>(1, kGrainBytes / shape.block_bytes);
}

std::uint64_t checksum_of(const BlockShape& shape, const std::uint8_t* block, std::int64_t number) {
    return xxh64(block, static_cast<std::size_t>(shape.block_bytes - kChecksumBytes),
                 shape.seed + static_cast<std::uint64_t>(number));
}

}  // namespace

void pack_blocks(const BlockShape& shape, const std::uint8_t* rows, std::int64_t num_rows,
                 std::int64_t first_block, std::uint8_t* blocks) {
    const std::int64_t num_blocks = (num_rows + shape.rows_per_block - 1) / shape.rows_per_block;
    const auto pack = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end; ++b) {
            std::uint8_t* const block = blocks + b * shape.block_bytes;
            const std::int64_t first_row = b * shape.rows_per_block;
            const std::int64_t bytes =
                std::min(shape.rows_per_block, num_rows - first_row) * shape.row_bytes;
            std::memcpy(block, rows + first_row * shape.row_bytes, static_cast<std::size_t>(bytes));
            std::memset(block + bytes, 0, static_cast<std::size_t>(shape.block_bytes - bytes));
            store_u64_little_endian(block + shape.block_bytes - kChecksumBytes,
                                    checksum_of(shape, block, first_block + b));
        }
    };
    ThreadPool::shared().parallel_for(num_blocks, grain_of(shape), pack);
}

std::int64_t find_bad_block(const BlockShape& shape, const std::uint8_t* blocks,
                            std::int64_t num_blocks, std::int64_t first_block) {
    std::atomic<std::int64_t> first_bad{num_blocks};
    const auto check = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t b = begin; b < end && b < first_bad.load(); ++b) {
            const std::uint8_t* const block = blocks + b * shape.block_bytes;
            const std::uint64_t stored =
                load_u64_little_endian(block + shape.block_bytes - kChecksumBytes);
            if (stored == checksum_of(shape, block, first_block + b)) continue;
            std::int64_t seen = first_bad.load();
            while (b < seen && !first_bad.compare_exchange_weak(seen, b)) {
            }
            return;
        }
    };
    ThreadPool::shared().parallel_for(num_blocks, grain_of(shape), check);
    return first_bad.load() < num_blocks ? first_bad.load() : -1;
}

}  // namespace gramary
