#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "disk/block_plan.hpp"
#include "disk/file_set.hpp"

namespace gramary {

// Why rows could not be had.
struct ReadFailure {
    enum class Kind { read, checksum, replaced };
    Kind kind;
    std::uint64_t address;
    int error;                 // of a read; 0: the file ended too early; ESTALE: it was replaced
    std::uint64_t stored = 0;  // of a checksum
    std::uint64_t computed = 0;
};

// Whether blocks end in their XXH64, and how it is seeded: with `seed` plus the block's number,
// so that a block at the wrong place or of another file is found out.
struct BlockChecks {
    std::uint32_t block_bytes = 0;  // 0: blocks carry no checksums
    std::uint64_t seed = 0;
};

// A read and the bytes that came for it.
struct Arrival {
    const BlockRead* read;
    const std::uint8_t* data;
};

// The reads of one batch and where their bytes go. Backends call `deliver` or `fail` once for each
// read, from any thread; different reads never write the same output byte. After the first failure
// the rest may be skipped. Lives on the caller's stack until every read was answered.
class ReadTask {
 public:
    ReadTask(const FileSet& files, const BlockChecks& checks, std::span<const Fragment> fragments,
             std::span<const BlockRead> reads, std::uint8_t* out, bool direct)
        : files_(files),
          checks_(checks),
          fragments_(fragments),
          reads_(reads),
          out_(out),
          direct_(direct) {}

    std::span<const BlockRead> reads() const noexcept { return reads_; }
    bool direct() const noexcept { return direct_; }
    // Of the memory that a read needs.
    std::uint32_t alignment() const noexcept { return direct_ ? files_.direct_alignment() : 1; }
    int buffered_fd(const BlockRead& read) const noexcept {
        return files_.buffered_fd(file_of(read.address));
    }
    int fd_of(const BlockRead& read) const noexcept {
        return direct_ ? files_.direct_fd(file_of(read.address)) : buffered_fd(read);
    }

    // Where the bytes of a read may be put at once, or nullptr when they need `deliver`.
    std::uint8_t* destination(const BlockRead& read) const noexcept;
    // Checks the first `needed` bytes of each read and copies its fragments to the output. Several
    // at a time are checked faster than one by one.
    void deliver(std::span<const Arrival> arrivals);
    // Reads once more through the page cache, calmly; what still fails is the batch's failure.
    void retry(const BlockRead& read);
    void fail(const ReadFailure& failure);
    bool failed() const noexcept { return failed_.load(std::memory_order_relaxed); }
    // The failure at the lowest address, once all reads were answered.
    std::optional<ReadFailure> failure() const { return failure_; }

 private:
    class BlockCheck;
    std::span<const Fragment> fragments_of(const BlockRead& read) const noexcept {
        return fragments_.subspan(read.first_fragment, read.num_fragments);
    }
    bool check_blocks(std::span<const Arrival> arrivals);
    void prefetch(const Arrival& arrival) const noexcept;

    const FileSet& files_;
    const BlockChecks& checks_;
    std::span<const Fragment> fragments_;
    std::span<const BlockRead> reads_;
    std::uint8_t* out_;
    bool direct_;
    std::atomic<bool> failed_{false};
    std::mutex failure_mutex_;
    std::optional<ReadFailure> failure_;
};

}  // namespace gramary
