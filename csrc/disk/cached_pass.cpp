#include "disk/cached_pass.hpp"

#include <algorithm>

#include "base/thread_pool.hpp"
#include "disk/aligned_buffer.hpp"
#include "disk/positioned_read.hpp"

namespace gramary {
namespace {

// Up to this many reads the caller tries alone.
constexpr std::int64_t kGrain = 512;
constexpr std::size_t kSampleReads = 64;
constexpr std::int64_t kSampleHitsWorthwhile = 4;

}  // namespace

void CachedPass::start(const ReadTask& task) {
    is_missing_.assign(task.reads().size(), 1);
    num_hits_ = 0;
    hit_bytes_ = 0;
}

bool CachedPass::try_sample(ReadTask& task) {
    const std::size_t count = task.reads().size();
    if (count < kSampleReads) return true;
    try_range(task, 0, count, count / kSampleReads);
    return num_hits() >= kSampleHitsWorthwhile;
}

void CachedPass::try_all(ReadTask& task) {
    ThreadPool& pool = ThreadPool::shared();
    const auto count = static_cast<std::int64_t>(task.reads().size());
    // Small enough that no thread is waited for long: a read takes microseconds.
    const std::int64_t share =
        std::clamp<std::int64_t>(count / (4 * pool.num_threads()), 32, kGrain);
    pool.parallel_for(
        count, count > kGrain ? share : kGrain, [&](std::int64_t begin, std::int64_t end) {
            try_range(task, static_cast<std::size_t>(begin), static_cast<std::size_t>(end), 1);
        });
}

void CachedPass::try_range(ReadTask& task, std::size_t begin, std::size_t end, std::size_t step) {
    thread_local AlignedBuffer buffer;
    std::int64_t hits = 0;
    std::int64_t bytes = 0;
    for (std::size_t i = begin; i < end && !task.failed(); i += step) {
        if (is_missing_[i] == 0) continue;
        const BlockRead& read = task.reads()[i];
        std::uint8_t* const place = task.destination(read);
        std::uint8_t* const data = place != nullptr ? place : buffer.reserve(read.length);
        const CacheAnswer answer =
            read_cached(task.buffered_fd(read), data, read.needed, offset_of(read.address));
        // A file system that cannot tell counts as cold.
        if (answer == CacheAnswer::unsupported) break;
        if (answer == CacheAnswer::miss) continue;
        if (place == nullptr) task.deliver(read, data);
        is_missing_[i] = 0;
        ++hits;
        bytes += read.needed;
    }
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
