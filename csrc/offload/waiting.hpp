#pragma once
#include <chrono>

#include "offload/waiter.hpp"

namespace gramary::offload {

// Waits until a condition holds, spinning shortly, then sleeping; false after the time-out.
template <class Condition>
bool wait_until(double timeout_s, const Condition& holds) {
    if (holds()) return true;
    const auto begin = std::chrono::steady_clock::now();
    Waiter waiter(Waiter::Kind::adaptive);
    while (!holds()) {
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
        if (waited.count() > timeout_s) return false;
        waiter.idle();
    }
    return true;
}

}  // namespace gramary::offload
