#include "disk/disk_reader.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/thread_pool.hpp"
#include "disk/aligned_buffer.hpp"
#include "disk/positioned_read.hpp"
#include "disk/pread_backend.hpp"

namespace gramary {
namespace {

// Rows planned at a time: bounds the scratch memory of a call.
constexpr std::size_t kPieceRows = std::size_t{1} << 18;
// Up to this many reads the caller does alone what the page cache holds.
constexpr std::int64_t kCachedGrain = 512;
// From this many reads on a sample decides whether the page cache is worth asking.
constexpr std::size_t kSampleFrom = 4096;
constexpr std::size_t kSampleReads = 64;
constexpr std::size_t kSampleHitsWorthwhile = 4;
// From this many missing reads on they bypass the page cache.
constexpr std::size_t kDirectFrom = 4096;
constexpr std::uint32_t kDirectReadBytes = 16384;
constexpr int kPreadThreads = 32;

}  // namespace

struct DiskReader::Scratch {
    std::vector<Fragment> fragments;
    std::vector<BlockRead> reads;
    std::vector<std::uint8_t> is_missing;  // by read
};

DiskReader::DiskReader(RowMap map, std::vector<FileIdentity> files, const BlockChecks& checks,
                       const DiskOptions& options)
    : map_(std::move(map)), files_(std::move(files), options.direct_io), checks_(checks) {
    if (!files_.direct_refusal().empty()) {
        notes_.push_back("O_DIRECT is not available, large batches go through the page cache: " +
                         files_.direct_refusal());
    }
    const int num_threads = options.num_threads > 0 ? options.num_threads : kPreadThreads;
    backend_ = std::make_unique<PreadBackend>(num_threads);
}

ReadRules DiskReader::buffered_rules() const noexcept {
    if (checks_.block_bytes != 0) return {checks_.block_bytes, checks_.block_bytes, true};
    return {1, static_cast<std::uint32_t>(kPageBytes)};
}

ReadRules DiskReader::direct_rules() const noexcept {
    const std::uint32_t alignment = std::max(files_.direct_alignment(), checks_.block_bytes);
    return {alignment, std::max(alignment, kDirectReadBytes), checks_.block_bytes != 0};
}

std::optional<ReadFailure> DiskReader::read(std::span<const std::int64_t> row_ids,
                                            std::uint8_t* out) {
    Scratch scratch;
    DiskStats::add(stats_.num_batches, 1);
    DiskStats::add(stats_.num_rows, static_cast<std::int64_t>(row_ids.size()));
    DiskStats::add(stats_.row_bytes, static_cast<std::int64_t>(row_ids.size()) * map_.row_bytes());
    for (std::size_t begin = 0; begin < row_ids.size(); begin += kPieceRows) {
        const auto piece = row_ids.subspan(begin, std::min(kPieceRows, row_ids.size() - begin));
        const auto failure =
            read_piece(piece, out + static_cast<std::int64_t>(begin) * map_.row_bytes(), scratch);
        if (failure) {
            DiskStats::add(stats_.num_failures, 1);
            return failure;
        }
    }
    return std::nullopt;
}

std::optional<ReadFailure> DiskReader::read_piece(std::span<const std::int64_t> row_ids,
                                                  std::uint8_t* out, Scratch& scratch) {
    {
        StopWatch watch(stats_.planning_ns);
        locate_rows(map_, row_ids, scratch.fragments);
        plan_reads(scratch.fragments, buffered_rules(), scratch.reads);
        DiskStats::add(stats_.num_blocks, count_blocks(scratch.fragments, kPageBytes));
        DiskStats::add(stats_.num_distinct_rows,
                       count_distinct(scratch.fragments) / map_.parts_per_row());
    }
    if (auto failure = read_warm(out, scratch)) return failure;
    if (scratch.fragments.empty()) return std::nullopt;
    return read_cold(out, scratch);
}

// Reads what the page cache holds; leaves in `fragments` what it does not.
std::optional<ReadFailure> DiskReader::read_warm(std::uint8_t* out, Scratch& scratch) {
    StopWatch watch(stats_.cached_ns);
    const auto& reads = scratch.reads;
    ReadTask task(files_, checks_, scratch.fragments, reads, out, false);
    scratch.is_missing.assign(reads.size(), 1);
    std::atomic<std::int64_t> num_hits{0};
    std::atomic<std::int64_t> hit_bytes{0};
    const auto try_reads = [&](std::size_t begin, std::size_t end, std::size_t step) {
        thread_local AlignedBuffer buffer;
        std::int64_t hits = 0;
        std::int64_t bytes = 0;
        for (std::size_t i = begin; i < end; i += step) {
            const BlockRead& read = reads[i];
            if (scratch.is_missing[i] == 0) continue;
            std::uint8_t* const place = task.destination(read);
            std::uint8_t* const data = place != nullptr ? place : buffer.reserve(read.length);
            const CacheAnswer answer =
                read_cached(task.buffered_fd(read), data, read.needed, offset_of(read.address));
            if (answer == CacheAnswer::unsupported) break;
            if (answer == CacheAnswer::miss) continue;
            if (place == nullptr) task.deliver(read, data);
            scratch.is_missing[i] = 0;
            ++hits;
            bytes += read.needed;
        }
        num_hits.fetch_add(hits, std::memory_order_relaxed);
        hit_bytes.fetch_add(bytes, std::memory_order_relaxed);
    };
    bool is_worthwhile = true;
    if (reads.size() >= kSampleFrom) {
        try_reads(0, reads.size(), reads.size() / kSampleReads);
        is_worthwhile = num_hits.load() >= static_cast<std::int64_t>(kSampleHitsWorthwhile);
    }
    if (is_worthwhile) {
        ThreadPool::shared().parallel_for(static_cast<std::int64_t>(reads.size()), kCachedGrain,
                                          [&](std::int64_t begin, std::int64_t end) {
                                              try_reads(static_cast<std::size_t>(begin),
                                                        static_cast<std::size_t>(end), 1);
                                          });
    }
    DiskStats::add(stats_.num_cached_reads, num_hits.load());
    DiskStats::add(stats_.read_bytes, hit_bytes.load());
    if (task.failed()) return task.failure();
    if (num_hits.load() == static_cast<std::int64_t>(reads.size())) {
        scratch.fragments.clear();
        return std::nullopt;
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < reads.size(); ++i) {
        if (scratch.is_missing[i] == 0) continue;
        for (std::uint32_t f = 0; f < reads[i].num_fragments; ++f) {
            scratch.fragments[kept++] = scratch.fragments[reads[i].first_fragment + f];
        }
    }
    scratch.fragments.resize(kept);
    return std::nullopt;
}

std::optional<ReadFailure> DiskReader::read_cold(std::uint8_t* out, Scratch& scratch) {
    StopWatch watch(stats_.waiting_ns);
    const bool direct = files_.direct() && scratch.fragments.size() >= kDirectFrom;
    plan_reads(scratch.fragments, direct ? direct_rules() : buffered_rules(), scratch.reads);
    ReadTask task(files_, checks_, scratch.fragments, scratch.reads, out, direct);
    backend_->run(task);
    const auto num_reads = static_cast<std::int64_t>(scratch.reads.size());
    std::int64_t bytes = 0;
    for (const BlockRead& read : scratch.reads) bytes += read.length;
    DiskStats::add(stats_.num_stored_reads, num_reads);
    DiskStats::add(stats_.num_direct_reads, direct ? num_reads : 0);
    DiskStats::add(stats_.read_bytes, bytes);
    return task.failure();
}

std::vector<std::string> DiskReader::take_notes() {
    std::lock_guard lock(notes_mutex_);
    return std::exchange(notes_, {});
}

}  // namespace gramary
