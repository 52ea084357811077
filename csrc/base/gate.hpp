#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace gramary {

// Counts the calls inside an object, so that closing it can wait for them.
//
// Any number of threads may be inside. Once shut() was called nobody enters, and empty() waits for
// those who are. Entering and leaving are one addition each; only the last to leave a gate that is
// shut takes a lock.
class Gate {
 public:
    // False once the gate is shut; the caller is not inside then.
    bool enter() noexcept;
    void leave() noexcept;
    // More calls do nothing.
    void shut() noexcept { state_.fetch_or(kShut, std::memory_order_acq_rel); }
    bool is_shut() const noexcept { return state_.load(std::memory_order_acquire) & kShut; }
    // Waits until nobody is inside, or the time is over; returns whether nobody is.
    bool empty(std::chrono::microseconds timeout);

 private:
    static constexpr std::uint64_t kShut = std::uint64_t{1} << 63;

    bool is_empty() const noexcept {
        return (state_.load(std::memory_order_acquire) & ~kShut) == 0;
    }

    // How many are inside, and whether the gate is shut.
    std::atomic<std::uint64_t> state_{0};
    std::mutex mutex_;
    std::condition_variable left_;
};

}  // namespace gramary
