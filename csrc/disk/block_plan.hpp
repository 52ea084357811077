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
    // Reads start and end on multiples of this; 1 reads exactly from the first fragment to the
    // last, joining those that share a page.
    std::uint32_t alignment = 1;
    // Longest read, unless one fragment alone needs more.
    std::uint32_t max_read_bytes = 4096;
    // Whether all of a read must arrive (blocks with checksums), not only up to the last fragment.
    bool needs_whole = false;
};

constexpr std::uint64_t kPageBytes = 4096;

// Fragments of `row_ids` in the order of their addresses; row i belongs at row places[i] of the
// output, or at row i where `places` is empty. Large batches are located by the shared thread pool.
// `spare` is memory for sorting.
void locate_rows(const RowMap& map, std::span<const std::int64_t> row_ids,
                 std::span<const std::int64_t> places, std::vector<Fragment>& fragments,
                 std::vector<Fragment>& spare);

// Distinct blocks of `alignment` bytes that sorted fragments touch. Pure.
std::int64_t count_blocks(std::span<const Fragment> fragments, std::uint64_t alignment);

// Distinct addresses among sorted fragments. Pure.
std::int64_t count_distinct(std::span<const Fragment> fragments);

}  // namespace gramary
