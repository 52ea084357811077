#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "disk/read_task.hpp"

namespace gramary {

// Reads of a task what the page cache holds and remembers what it does not. Never waits for
// storage. One pass serves one task at a time; its memory is reused by the next.
class CachedPass {
 public:
    // Forgets the task before; every read is missing.
    void start(const ReadTask& task);
    // Tries a few reads spread over the task: false when so few are cached that asking for the
    // rest would cost more than it saves.
    bool try_sample(ReadTask& task);
    // Tries all missing reads: up to a few hundred on the caller, more with the shared pool.
    void try_all(ReadTask& task);

    std::int64_t num_hits() const noexcept { return num_hits_.load(std::memory_order_relaxed); }
    std::int64_t hit_bytes() const noexcept { return hit_bytes_.load(std::memory_order_relaxed); }
    // Moves the fragments of missing reads to the front and drops the others.
    void keep_missing(std::span<const BlockRead> reads, std::vector<Fragment>& fragments) const;

 private:
    void try_range(ReadTask& task, std::size_t begin, std::size_t end, std::size_t step);

    std::vector<std::uint8_t> is_missing_;
    std::atomic<std::int64_t> num_hits_{0};
    std::atomic<std::int64_t> hit_bytes_{0};
};

}  // namespace gramary
