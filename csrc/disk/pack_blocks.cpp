#include "disk/pack_blocks.hpp"

#include <algorithm>
#include <cstring>

#include "base/first_index.hpp"
#include "base/thread_pool.hpp"
#include "disk/block_digests.hpp"
#include "disk/xxh64.hpp"

namespace gramary {
namespace {

constexpr std::int64_t kChecksumBytes = 8;
constexpr std::int64_t kGrainBytes = 256 << 10;

std::int64_t grain_of(const BlockShape& shape) {
    return std::max<std::int64_t>(1, kGrainBytes / shape.block_bytes);
}

// Digests of up to kDigestGroup blocks in a row.
class Digests {
 public:
    Digests(const BlockShape& shape, const std::uint8_t* blocks, std::int64_t count,
            std::int64_t first_number)
        : count_(static_cast<std::size_t>(count)) {
        for (std::size_t i = 0; i < count_; ++i) {
            blocks_[i] = blocks + static_cast<std::int64_t>(i) * shape.block_bytes;
            seeds_[i] = shape.seed + static_cast<std::uint64_t>(first_number) + i;
        }
        digest_blocks(blocks_, seeds_, count_,
                      static_cast<std::size_t>(shape.block_bytes - kChecksumBytes), digests_);
    }

    std::uint64_t operator[](std::int64_t i) const noexcept { return digests_[i]; }

 private:
    std::size_t count_;
    const std::uint8_t* blocks_[kDigestGroup];
    std::uint64_t seeds_[kDigestGroup];
    std::uint64_t digests_[kDigestGroup];
};

// Calls body(first, count) for blocks [begin, end), a group at a time.
template <class Body>
void for_each_group(std::int64_t begin, std::int64_t end, const Body& body) {
    constexpr auto kGroup = static_cast<std::int64_t>(kDigestGroup);
    for (std::int64_t b = begin; b < end; b += kGroup) body(b, std::min(kGroup, end - b));
}

}  // namespace

void pack_blocks(const BlockShape& shape, const std::uint8_t* rows, std::int64_t num_rows,
                 std::int64_t first_block, std::uint8_t* blocks) {
    const std::int64_t num_blocks = (num_rows + shape.rows_per_block - 1) / shape.rows_per_block;
    const auto fill = [&](std::int64_t b) {
        std::uint8_t* const block = blocks + b * shape.block_bytes;
        const std::int64_t first_row = b * shape.rows_per_block;
        const std::int64_t bytes =
            std::min(shape.rows_per_block, num_rows - first_row) * shape.row_bytes;
        std::memcpy(block, rows + first_row * shape.row_bytes, static_cast<std::size_t>(bytes));
        std::memset(block + bytes, 0, static_cast<std::size_t>(shape.block_bytes - bytes));
    };
    const auto pack = [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t b = first; b < first + count; ++b) fill(b);
        std::uint8_t* const group = blocks + first * shape.block_bytes;
        const Digests digests(shape, group, count, first_block + first);
        for (std::int64_t i = 0; i < count; ++i) {
            store_u64_little_endian(group + (i + 1) * shape.block_bytes - kChecksumBytes,
                                    digests[i]);
        }
    };
    ThreadPool::shared().parallel_for(
        num_blocks, grain_of(shape),
        [&](std::int64_t begin, std::int64_t end) { for_each_group(begin, end, pack); });
}

std::int64_t find_bad_block(const BlockShape& shape, const std::uint8_t* blocks,
                            std::int64_t num_blocks, std::int64_t first_block) {
    FirstIndex first_bad;
    const auto check = [&](std::int64_t first, std::int64_t count) {
        const std::uint8_t* const group = blocks + first * shape.block_bytes;
        const Digests digests(shape, group, count, first_block + first);
        for (std::int64_t i = 0; i < count; ++i) {
            const std::uint64_t stored =
                load_u64_little_endian(group + (i + 1) * shape.block_bytes - kChecksumBytes);
            if (stored != digests[i]) first_bad.note(first + i);
        }
    };
    ThreadPool::shared().parallel_for(
        num_blocks, grain_of(shape),
        [&](std::int64_t begin, std::int64_t end) { for_each_group(begin, end, check); });
    return first_bad.get();
}

}  // namespace gramary
