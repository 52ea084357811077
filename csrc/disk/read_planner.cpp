#include "disk/read_planner.hpp"

#include <algorithm>

namespace gramary {
namespace {

// To a power of two.
std::uint64_t align_down(std::uint64_t address, std::uint64_t alignment) {
    return address & ~(alignment - 1);
}

std::uint64_t align_up(std::uint64_t address, std::uint64_t alignment) {
    return align_down(address + alignment - 1, alignment);
}

}  // namespace

void ReadPlanner::plan(std::vector<Fragment>& fragments, const ReadRules& rules,
                       std::vector<BlockRead>& reads) {
    rules_ = rules;
    reads.clear();
    placed_.clear();
    tails_.clear();
    std::size_t next_tail = 0;
    std::size_t next = 0;
    while (next < fragments.size() || next_tail < tails_.size()) {
        const bool takes_tail =
            next_tail < tails_.size() &&
            (next == fragments.size() || fragments[next].address >= tails_[next_tail].address);
        // By value: placing a fragment may grow `tails_`.
        const Fragment fragment = takes_tail ? tails_[next_tail++] : fragments[next++];
        place(fragment, reads);
    }
    fragments.swap(placed_);
    if (!rules_.needs_whole) return;
    for (BlockRead& read : reads) read.needed = read.length;
}

void ReadPlanner::place(const Fragment& fragment, std::vector<BlockRead>& reads) {
    if (reads.empty() || fragment.address >= reach_) return begin_read(fragment, reads);
    BlockRead& read = reads.back();
    const std::uint64_t needed_end = fragment.address + fragment.width;
    const std::uint64_t joined_end = std::max(end_, align_up(needed_end, rules_.alignment));
    const bool fits = joined_end == end_ || joined_end - read.address <= rules_.max_read_bytes;
    if (!fits && fragment.address >= end_) return begin_read(fragment, reads);
    Fragment head = fragment;
    if (fits) {
        set_end(joined_end, read);
    } else {
        head.width = static_cast<std::uint32_t>(end_ - fragment.address);
        tails_.push_back({end_, fragment.target + head.width, fragment.width - head.width});
    }
    const auto needed = static_cast<std::uint32_t>(head.address + head.width - read.address);
    read.needed = std::max(read.needed, needed);
    ++read.num_fragments;
    placed_.push_back(head);
}

void ReadPlanner::begin_read(const Fragment& fragment, std::vector<BlockRead>& reads) {
    const std::uint64_t start = align_down(fragment.address, rules_.alignment);
    const std::uint64_t needed_end = fragment.address + fragment.width;
    reads.push_back({start, 0, static_cast<std::uint32_t>(needed_end - start),
                     static_cast<std::uint32_t>(placed_.size()), 1});
    set_end(align_up(needed_end, rules_.alignment), reads.back());
    placed_.push_back(fragment);
}

void ReadPlanner::set_end(std::uint64_t end, BlockRead& read) {
    end_ = end;
    read.length = static_cast<std::uint32_t>(end - read.address);
    reach_ = rules_.alignment == 1 ? align_up(end, kPageBytes) : end + rules_.alignment;
}

}  // namespace gramary
