#include "offload/waiter.hpp"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace gramary::offload {
namespace {

using std::chrono::microseconds;

// A hundredth of the idle time, from 20 us to 500 us: whoever asks every 10 ms is answered 0.1 ms
// late at most.
microseconds step_after(std::chrono::nanoseconds idle) noexcept {
    const auto part = std::chrono::duration_cast<microseconds>(idle / 100);
    return std::clamp(part, microseconds(20), microseconds(500));
}

}  // namespace

void relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void SpinWait::once() noexcept {
    if (++rounds_ < kRounds) return relax();
    sched_yield();
}

Waiter::Kind Waiter::kind_of(const std::string& name) {
    if (name == "adaptive") return Kind::adaptive;
    if (name == "spin") return Kind::spin;
    if (name == "sleep") return Kind::sleep;
    throw std::invalid_argument("poll: expected adaptive, spin or sleep, got " + name);
}

void Waiter::idle() noexcept {
    const auto idle_time = Clock::now() - idle_since_;
    const bool spins = kind_ == Kind::spin || (kind_ == Kind::adaptive && idle_time < spin_);
    if (spins) return spinning_.once();
    std::this_thread::sleep_for(step_after(idle_time));
}

void Waiter::sleep_precisely() noexcept { prctl(PR_SET_TIMERSLACK, 1UL); }

}  // namespace gramary::offload
