#include "disk/block_plan.hpp"

#include <algorithm>

#include "base/thread_pool.hpp"

namespace gramary {
namespace {

constexpr std::int64_t kLocateGrain = 8192;
constexpr std::size_t kRadixMinimum = 2048;
constexpr int kRadixBits = 11;

// Stable least-significant-digit radix sort over the bits in which addresses differ.
void radix_sort(std::vector<Fragment>& fragments, std::vector<Fragment>& spare) {
    std::uint64_t all_or = 0;
    std::uint64_t all_and = ~std::uint64_t{0};
    for (const Fragment& f : fragments) {
        all_or |= f.address;
        all_and &= f.address;
    }
    const std::uint64_t varying = all_or ^ all_and;
    spare.resize(fragments.size());
    for (int shift = 0; shift < 64 && (varying >> shift) != 0; shift += kRadixBits) {
        constexpr std::uint64_t kMask = (1u << kRadixBits) - 1;
        if (((varying >> shift) & kMask) == 0) continue;
        std::vector<std::uint32_t> starts(std::size_t{1} << kRadixBits, 0);
        for (const Fragment& f : fragments) ++starts[(f.address >> shift) & kMask];
        std::uint32_t sum = 0;
        for (std::uint32_t& start : starts) {
            const std::uint32_t count = start;
            start = sum;
            sum += count;
        }
        for (const Fragment& f : fragments) spare[starts[(f.address >> shift) & kMask]++] = f;
        fragments.swap(spare);
    }
}

}  // namespace

void locate_rows(const RowMap& map, std::span<const std::int64_t> row_ids,
                 std::span<const std::int64_t> places, std::vector<Fragment>& fragments,
                 std::vector<Fragment>& spare) {
    const std::int64_t parts = map.parts_per_row();
    fragments.resize(row_ids.size() * static_cast<std::size_t>(parts));
    const auto locate = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
            const auto at = static_cast<std::size_t>(i);
            map.locate(row_ids[at], places.empty() ? i : places[at], fragments.data() + i * parts);
        }
    };
    ThreadPool::shared().parallel_for(static_cast<std::int64_t>(row_ids.size()), kLocateGrain,
                                      locate);
    if (fragments.size() >= kRadixMinimum) {
        radix_sort(fragments, spare);
    } else {
        std::sort(fragments.begin(), fragments.end(),
                  [](const Fragment& a, const Fragment& b) { return a.address < b.address; });
    }
}

std::int64_t count_blocks(std::span<const Fragment> fragments, std::uint64_t alignment) {
    std::int64_t count = 0;
    std::uint64_t next = 0;  // first block not counted yet, plus nothing: block numbers from 0
    for (const Fragment& f : fragments) {
        const std::uint64_t first = std::max(f.address / alignment, next);
        const std::uint64_t last = (f.address + f.width - 1) / alignment;
        if (last >= first) count += static_cast<std::int64_t>(last - first + 1);
        next = std::max(next, last + 1);
    }
    return count;
}

std::int64_t count_distinct(std::span<const Fragment> fragments) {
    std::int64_t count = fragments.empty() ? 0 : 1;
    for (std::size_t i = 1; i < fragments.size(); ++i) {
        count += fragments[i].address != fragments[i - 1].address;
    }
    return count;
}

}  // namespace gramary
