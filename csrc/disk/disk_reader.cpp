#include "disk/disk_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "disk/cached_pass.hpp"
#include "disk/descriptor_shortage.hpp"
#include "disk/mmap_backend.hpp"
#include "disk/pread_backend.hpp"
#include "disk/read_planner.hpp"
#include "disk/residency.hpp"
#include "disk/uring_backend.hpp"

namespace gramary {
namespace {

// From this many blocks on a batch is large: a sample decides whether the page cache is worth
// asking, and what it misses bypasses it.
constexpr std::int64_t kLargeFrom = 4096;
constexpr std::uint32_t kDirectReadBytes = 8192;
constexpr int kPreadThreads = 32;
constexpr std::size_t kMaxIdleScratch = 2;

ReadFailure replaced(std::int64_t file) {
    return {ReadFailure::Kind::replaced, make_address(file, 0), ESTALE};
}

}  // namespace

struct DiskReader::Scratch {
    RowLocator locator;
    std::vector<Fragment> fragments;
    std::vector<std::int64_t> files;  // that they lie in
    std::vector<BlockRead> reads;
    ReadPlanner planner;
    CachedPass pass;
};

// Lends a call its memory and keeps it for the next one: taking megabytes anew for each large batch
// costs a page fault for every 4 KiB of them. A forked child may find the lock held for ever.
struct DiskReader::ScratchLoan {
    explicit ScratchLoan(DiskReader& reader) : reader_(reader) {
        std::unique_lock lock(reader.scratch_mutex_, std::try_to_lock);
        if (lock && !reader.idle_scratch_.empty()) {
            scratch = std::move(reader.idle_scratch_.back());
            reader.idle_scratch_.pop_back();
        }
        if (scratch == nullptr) scratch = std::make_unique<Scratch>();
    }
    ~ScratchLoan() {
        std::unique_lock lock(reader_.scratch_mutex_, std::try_to_lock);
        if (lock && reader_.idle_scratch_.size() < kMaxIdleScratch) {
            reader_.idle_scratch_.push_back(std::move(scratch));
        }
    }
    ScratchLoan(const ScratchLoan&) = delete;
    ScratchLoan& operator=(const ScratchLoan&) = delete;

    std::unique_ptr<Scratch> scratch;

 private:
    DiskReader& reader_;
};

DiskReader::~DiskReader() = default;

DiskReader::DiskReader(RowMap map, std::vector<FileIdentity> files, const BlockChecks& checks,
                       const DiskOptions& options)
    : map_(std::move(map)),
      files_(std::move(files), options.direct_io && options.reader != "mmap"),
      watch_(files_, checks.block_bytes != 0),
      checks_(checks) {
    note_direct_refusal();
    choose_backend(options);
}

void DiskReader::note_direct_refusal() {
    if (files_.direct_refusal().empty()) return;
    if (const int error = files_.direct_shortage()) {
        notes_.push_back(
            "too few file descriptors for direct reads, large batches go through the "
            "page cache: " +
            files_.direct_refusal() + ", " + describe_descriptor_limit(error) + ", and " +
            std::to_string(files_.size()) + " more are needed");
        return;
    }
    notes_.push_back("O_DIRECT is not available, large batches go through the page cache: " +
                     files_.direct_refusal());
}

void DiskReader::choose_backend(const DiskOptions& options) {
    if (options.reader == "mmap") {
        backend_ = std::make_unique<MmapBackend>(files_, options.mmap_budget_bytes);
        return;
    }
    const int num_pread_threads = options.num_threads > 0 ? options.num_threads : kPreadThreads;
    if (options.reader != "pread") {
        UringRefusal refusal;
        backend_ = UringBackend::try_make(files_, stats_, num_pread_threads, refusal);
        if (backend_ != nullptr) return;
        const std::string why = refusal.describe();
        const std::string what = is_descriptor_shortage(refusal.error)
                                     ? "too few file descriptors for io_uring"
                                     : "io_uring is not available";
        if (options.reader == "io_uring") throw Unsupported(what + ": " + why);
        notes_.push_back(what + ", rows are read by pread: " + why);
    }
    backend_ = std::make_unique<PreadBackend>(num_pread_threads);
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
                                            std::uint8_t* out,
                                            std::span<const std::int64_t> places) {
    const ScratchLoan loan(*this);
    Scratch& scratch = *loan.scratch;
    DiskStats::add(stats_.num_batches, 1);
    DiskStats::add(stats_.num_rows, static_cast<std::int64_t>(row_ids.size()));
    DiskStats::add(stats_.row_bytes, static_cast<std::int64_t>(row_ids.size()) * map_.row_bytes());
    for (std::size_t begin = 0; begin < row_ids.size(); begin += kMaxLocatedRows) {
        const std::size_t count = std::min(kMaxLocatedRows, row_ids.size() - begin);
        const bool is_dense = places.empty();
        {
            StopWatch watch(stats_.planning_ns);
            scratch.locator.locate(map_, row_ids.subspan(begin, count),
                                   is_dense ? places : places.subspan(begin, count),
                                   scratch.fragments);
        }
        const std::int64_t first_row = is_dense ? static_cast<std::int64_t>(begin) : 0;
        const auto failure = read_located(out + first_row * map_.row_bytes(), scratch);
        if (failure) {
            DiskStats::add(stats_.num_failures, 1);
            return failure;
        }
    }
    return std::nullopt;
}

// The failure of a batch that has rows of a file which is known to have changed.
std::optional<ReadFailure> DiskReader::find_known_change(std::span<const std::int64_t> files) {
    if (!watch_.has_changes()) return std::nullopt;
    for (const std::int64_t file : files) {
        if (watch_.is_changed(file)) return replaced(file);
    }
    return std::nullopt;
}

// The failure of a batch that was read from a file while it changed, or after.
std::optional<ReadFailure> DiskReader::find_changed(std::span<const std::int64_t> files) {
    for (const std::int64_t file : files) {
        if (!watch_.is_as_opened(file)) return replaced(file);
    }
    return std::nullopt;
}

// Reads the fragments of one piece, and looks at their files once all bytes are there.
std::optional<ReadFailure> DiskReader::read_located(std::uint8_t* out, Scratch& scratch) {
    list_files(scratch.fragments, scratch.files);
    if (const auto failure = find_known_change(scratch.files)) return failure;
    if (const auto failure = read_fragments(out, scratch)) return failure;
    return find_changed(scratch.files);
}

std::optional<ReadFailure> DiskReader::read_fragments(std::uint8_t* out, Scratch& scratch) {
    const auto [num_addresses, num_blocks] = count(scratch.fragments);
    DiskStats::add(stats_.num_blocks, num_blocks);
    DiskStats::add(stats_.num_distinct_rows, num_addresses / map_.parts_per_row());
    if (num_blocks < backend_->whole_batches_below()) return run_backend(out, scratch, false);
    const bool is_large = num_blocks >= kLargeFrom;
    const Warmth warmth = is_large ? measure_warmth(files_, scratch.fragments) : Warmth::warm;
    if (warmth != Warmth::cold) {
        if (const auto failure = read_cached_part(out, scratch, warmth == Warmth::mixed)) {
            return failure;
        }
        if (scratch.fragments.empty()) return std::nullopt;
    }
    const auto num_left = static_cast<std::int64_t>(scratch.fragments.size());
    return run_backend(out, scratch, files_.direct() && is_large && num_left >= kLargeFrom);
}

// Reads what the page cache holds; leaves in `fragments` what it does not.
std::optional<ReadFailure> DiskReader::read_cached_part(std::uint8_t* out, Scratch& scratch,
                                                        bool asks_first) {
    StopWatch watch(stats_.cached_ns);
    scratch.planner.plan(scratch.fragments, buffered_rules(), scratch.reads);
    ReadTask task(files_, checks_, scratch.fragments, scratch.reads, out, false);
    CachedPass& pass = scratch.pass;
    pass.run(task, asks_first);
    DiskStats::add(stats_.num_cached_reads, pass.num_hits());
    DiskStats::add(stats_.read_bytes, pass.hit_bytes());
    pass.keep_missing(scratch.reads, scratch.fragments);
    return task.failure();
}

std::optional<ReadFailure> DiskReader::run_backend(std::uint8_t* out, Scratch& scratch,
                                                   bool direct) {
    {
        StopWatch watch(stats_.planning_ns);
        scratch.planner.plan(scratch.fragments, direct ? direct_rules() : buffered_rules(),
                             scratch.reads);
    }
    StopWatch watch(stats_.reading_ns);
    ReadTask task(files_, checks_, scratch.fragments, scratch.reads, out, direct);
    backend_->run(task);
    const auto num_reads = static_cast<std::int64_t>(scratch.reads.size());
    std::int64_t bytes = 0;
    for (const BlockRead& read : scratch.reads) bytes += read.length;
    DiskStats::add(stats_.num_backend_reads, num_reads);
    DiskStats::add(stats_.num_direct_reads, direct ? num_reads : 0);
    DiskStats::add(stats_.read_bytes, bytes);
    return task.failure();
}

void DiskReader::set_script(std::vector<ScriptedFault> faults) {
    backend_ = std::make_unique<ScriptedBackend>(std::move(backend_), std::move(faults));
}

std::vector<std::string> DiskReader::notes() const {
    std::vector<std::string> all = notes_;
    if (std::string now = backend_->shortcoming(); !now.empty()) all.push_back(std::move(now));
    return all;
}

}  // namespace gramary
