#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "disk/read_task.hpp"

namespace gramary {

// Reads of a task what the page cache holds and remembers what it does not. One pass serves one
// task at a time; its memory is reused by the next.
class CachedPass {
 public:
    // Tries all reads of a task: up to a few hundred on the caller, more with the shared pool where
    // it is idle. With `asks_first` a read is tried only where the kernel says that it is cached;
    // without, one that is not costs a read that the kernel may start in vain.
    void run(ReadTask& task, bool asks_first);

    std::int64_t num_hits() const noexcept { return num_hits_.load(std::memory_order_relaxed); }
    std::int64_t hit_bytes() const noexcept { return hit_bytes_.load(std::memory_order_relaxed); }
    // Moves the fragments of missing reads to the front and drops the others.
    void keep_missing(std::span<const BlockRead> reads, std::vector<Fragment>& fragments) const;

 private:
    void try_range(ReadTask& task, bool asks_first, std::int64_t begin, std::int64_t end);

    std::vector<std::uint8_t> is_missing_;
    std::atomic<std::int64_t> num_hits_{0};
    std::atomic<std::int64_t> hit_bytes_{0};
};

}  // namespace gramary
