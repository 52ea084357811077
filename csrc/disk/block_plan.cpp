#include "disk/block_plan.hpp"

#include <algorithm>

#include "base/thread_pool.hpp"

namespace gramary {
namespace {

constexpr std::int64_t kLocateGrain = 16384;
constexpr std::size_t kRadixMinimum = 2048;
constexpr int kRadixBits = 11;
// A key is a row's number above its index in the batch.
constexpr int kIndexBits = 18;
static_assert(kMaxLocatedRows == std::size_t{1} << kIndexBits);
static_assert(kMaxFileBytes <= std::int64_t{1} << (64 - kIndexBits), "row numbers fit a key");

std::uint64_t number_of(std::uint64_t key) { return key; }
std::uint64_t number_of(const Fragment& fragment) { return fragment.address; }

// Stable least-significant-digit radix sort by the bits from `shift` on in which numbers differ.
template <class Item>
void radix_sort(std::vector<Item>& items, std::vector<Item>& spare, int shift) {
    std::uint64_t all_or = 0;
    std::uint64_t all_and = ~std::uint64_t{0};
    for (const Item& item : items) {
        all_or |= number_of(item);
        all_and &= number_of(item);
    }
    const std::uint64_t varying = all_or ^ all_and;
    spare.resize(items.size());
    std::vector<std::uint32_t> starts(std::size_t{1} << kRadixBits);
    for (; shift < 64 && (varying >> shift) != 0; shift += kRadixBits) {
        constexpr std::uint64_t kMask = (1u << kRadixBits) - 1;
        if (((varying >> shift) & kMask) == 0) continue;
        std::fill(starts.begin(), starts.end(), 0);
        for (const Item& item : items) ++starts[(number_of(item) >> shift) & kMask];
        std::uint32_t sum = 0;
        for (std::uint32_t& start : starts) {
            const std::uint32_t count = start;
            start = sum;
            sum += count;
        }
        for (const Item& item : items) {
            spare[starts[(number_of(item) >> shift) & kMask]++] = item;
        }
        items.swap(spare);
    }
}

}  // namespace

void RowLocator::locate(const RowMap& map, std::span<const std::int64_t> row_ids,
                        std::span<const std::int64_t> places, std::vector<Fragment>& fragments) {
    keys_.resize(row_ids.size());
    for (std::size_t i = 0; i < row_ids.size(); ++i) {
        keys_[i] = (static_cast<std::uint64_t>(row_ids[i]) << kIndexBits) | i;
    }
    if (keys_.size() >= kRadixMinimum) {
        radix_sort(keys_, spare_keys_, kIndexBits);
    } else {
        std::sort(keys_.begin(), keys_.end());
    }
    const std::int64_t parts = map.parts_per_row();
    fragments.resize(row_ids.size() * static_cast<std::size_t>(parts));
    const auto locate = [&](std::int64_t begin, std::int64_t end) {
        std::size_t run = 0;
        for (std::int64_t i = begin; i < end; ++i) {
            const std::uint64_t key = keys_[static_cast<std::size_t>(i)];
            const std::size_t index = key & (kMaxLocatedRows - 1);
            map.locate(static_cast<std::int64_t>(key >> kIndexBits),
                       places.empty() ? static_cast<std::int64_t>(index) : places[index],
                       fragments.data() + i * parts, run);
        }
    };
    const auto count = static_cast<std::int64_t>(row_ids.size());
    if (!ThreadPool::shared().try_parallel_for(count, kLocateGrain, locate)) locate(0, count);
    if (!map.is_ascending()) sort_by_address(fragments);
}

void RowLocator::sort_by_address(std::vector<Fragment>& fragments) {
    if (fragments.size() >= kRadixMinimum) {
        radix_sort(fragments, spare_, 0);
    } else {
        std::sort(fragments.begin(), fragments.end(),
                  [](const Fragment& a, const Fragment& b) { return a.address < b.address; });
    }
}

FragmentCounts count(std::span<const Fragment> fragments) {
    FragmentCounts counts;
    std::uint64_t next_block = 0;  // the first that was not counted yet
    std::uint64_t last_address = ~std::uint64_t{0};
    for (const Fragment& f : fragments) {
        counts.num_addresses += f.address != last_address;
        last_address = f.address;
        const std::uint64_t first = std::max(f.address / kPageBytes, next_block);
        const std::uint64_t end = (f.address + f.width - 1) / kPageBytes + 1;
        if (end > first) counts.num_blocks += static_cast<std::int64_t>(end - first);
        next_block = std::max(next_block, end);
    }
    return counts;
}

void list_files(std::span<const Fragment> fragments, std::vector<std::int64_t>& files) {
    files.clear();
    for (auto at = fragments.begin(); at != fragments.end();) {
        const std::int64_t file = file_of(at->address);
        files.push_back(file);
        at = std::partition_point(at, fragments.end(), [file](const Fragment& fragment) {
            return file_of(fragment.address) == file;
        });
    }
}

}  // namespace gramary
