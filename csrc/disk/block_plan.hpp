#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "disk/row_map.hpp"

namespace gramary {

// One read: `length` bytes at `address`, of which the first `needed` must arrive (a block at the
// end of a file may be cut short), and the fragments that it serves.
struct BlockRead {
    std::uint64_t address;
    std::uint32_t length;
    std::uint32_t needed;
    std::uint32_t first_fragment;
    std::uint32_t num_fragments;
};

// How fragments become reads.
struct ReadRules {
    // Reads start and end on multiples of this power of two; 1 reads exactly from the first
    // fragment to the last, joining those that share a page.
    std::uint32_t alignment = 1;
    // Longest read, unless one fragment alone needs more.
    std::uint32_t max_read_bytes = 4096;
    // Whether all of a read must arrive (blocks with checksums), not only up to the last fragment.
    bool needs_whole = false;
};

constexpr std::uint64_t kPageBytes = 4096;

// Most rows that are located at a time: bounds the memory of a call.
constexpr std::size_t kMaxLocatedRows = std::size_t{1} << 18;

// Turns row ids into fragments in the order of their addresses; keeps its memory for the next time.
class RowLocator {
 public:
    // Replaces `fragments`. Row i belongs at row places[i] of the output, or at row i where
    // `places` is empty. At most kMaxLocatedRows; many are shared with the pool, where it is idle.
    void locate(const RowMap& map, std::span<const std::int64_t> row_ids,
                std::span<const std::int64_t> places, std::vector<Fragment>& fragments);

 private:
    void sort_by_address(std::vector<Fragment>& fragments);

    std::vector<std::uint64_t> keys_;
    std::vector<std::uint64_t> spare_keys_;
    std::vector<Fragment> spare_;
};

// What sorted fragments touch.
struct FragmentCounts {
    std::int64_t num_addresses = 0;  // distinct
    std::int64_t num_blocks = 0;     // distinct, of kPageBytes
};
FragmentCounts count(std::span<const Fragment> fragments);

// Replaces `files` by those that fragments in the order of their addresses lie in, each once.
void list_files(std::span<const Fragment> fragments, std::vector<std::int64_t>& files);

}  // namespace gramary
