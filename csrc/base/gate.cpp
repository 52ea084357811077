#include "base/gate.hpp"

namespace gramary {

bool Gate::enter() noexcept {
    if (!(state_.fetch_add(1, std::memory_order_acq_rel) & kShut)) return true;
    leave();
    return false;
}

void Gate::leave() noexcept {
    if (state_.fetch_sub(1, std::memory_order_acq_rel) != (kShut | 1)) return;
    // Behind the lock, so that whoever waits is either asleep or looks once more.
    const std::lock_guard<std::mutex> lock(mutex_);
    left_.notify_all();
}

bool Gate::empty(std::chrono::microseconds timeout) {
    std::unique_lock<std::mutex> lock(mutex_);
    return left_.wait_for(lock, timeout, [this] { return is_empty(); });
}

}  // namespace gramary
