#pragma once
#include <atomic>
#include <cstdint>

namespace gramary {

// Rows that were read from one place, counted by any number of threads; a cache line of its own.
class alignas(64) RowCounter {
 public:
    void add(std::int64_t num_rows) noexcept {
        if (num_rows != 0) num_rows_.fetch_add(num_rows, std::memory_order_relaxed);
    }
    std::int64_t num_rows() const noexcept { return num_rows_.load(std::memory_order_relaxed); }
    void reset() noexcept { num_rows_.store(0, std::memory_order_relaxed); }

 private:
    std::atomic<std::int64_t> num_rows_{0};
};

}  // namespace gramary
