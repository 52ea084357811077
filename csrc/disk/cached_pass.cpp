#include "disk/cached_pass.hpp"

#include <algorithm>

#include "base/thread_pool.hpp"
#include "disk/arrival_group.hpp"
#include "disk/positioned_read.hpp"
#include "disk/residency.hpp"

namespace gramary {
namespace {

// Up to this many reads the caller tries alone.
constexpr std::int64_t kGrain = 512;

// Whether a read found all its bytes in the page cache; they are at `data` then.
bool try_read(const ReadTask& task, const BlockRead& read, std::uint8_t* data, bool asks_first) {
    const int fd = task.buffered_fd(read);
    const std::int64_t offset = offset_of(read.address);
    if (asks_first && ask_residency(fd, offset, read.needed) == Residency::missing) return false;
    return read_cached(fd, data, read.needed, offset);
}

}  // namespace

void CachedPass::run(ReadTask& task, bool asks_first) {
    const auto count = static_cast<std::int64_t>(task.reads().size());
    is_missing_.assign(task.reads().size(), 1);
    num_hits_ = 0;
    hit_bytes_ = 0;
    const auto try_share = [&](std::int64_t begin, std::int64_t end) {
        try_range(task, asks_first, begin, end);
    };
    ThreadPool& pool = ThreadPool::shared();
    // Small enough that no thread is waited for long: a read takes microseconds.
    const std::int64_t share =
        std::clamp<std::int64_t>(count / (4 * pool.num_threads()), 32, kGrain);
    if (count <= kGrain || !pool.try_parallel_for(count, share, try_share)) try_share(0, count);
}

void CachedPass::try_range(ReadTask& task, bool asks_first, std::int64_t begin, std::int64_t end) {
    ArrivalGroup group(task);
    std::int64_t hits = 0;
    std::int64_t bytes = 0;
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        if (task.failed()) break;
        const BlockRead& read = task.reads()[i];
        std::uint8_t* const place = task.destination(read);
        std::uint8_t* const data = place != nullptr ? place : group.reserve(read.length);
        if (!try_read(task, read, data, asks_first)) continue;
        if (place == nullptr) group.add(read);
        is_missing_[i] = 0;
        ++hits;
        bytes += read.needed;
    }
    group.deliver();
    num_hits_.fetch_add(hits, std::memory_order_relaxed);
    hit_bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

void CachedPass::keep_missing(std::span<const BlockRead> reads,
                              std::vector<Fragment>& fragments) const {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < reads.size(); ++i) {
        if (is_missing_[i] == 0) continue;
        for (std::uint32_t f = 0; f < reads[i].num_fragments; ++f) {
            fragments[kept++] = fragments[reads[i].first_fragment + f];
        }
    }
    fragments.resize(kept);
}

}  // namespace gramary
