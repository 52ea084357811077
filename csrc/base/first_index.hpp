#pragma once
#include <atomic>
#include <cstdint>
#include <limits>

namespace gramary {

// The least index that was noted, by any thread.
class FirstIndex {
 public:
    void note(std::int64_t index) noexcept {
        std::int64_t seen = least_.load(std::memory_order_relaxed);
        while (index < seen &&
               !least_.compare_exchange_weak(seen, index, std::memory_order_relaxed)) {
        }
    }

    // -1 if none was.
    std::int64_t get() const noexcept {
        const std::int64_t least = least_.load(std::memory_order_relaxed);
        return least == kNone ? -1 : least;
    }

 private:
    static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
    std::atomic<std::int64_t> least_{kNone};
};

}  // namespace gramary
