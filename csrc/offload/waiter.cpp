#include "offload/waiter.hpp"

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace gramary::offload {
namespace {

using std::chrono::microseconds;

// A step is a tenth of the idle time, from 20 us to 500 us.
microseconds step_after(std::chrono::nanoseconds idle) noexcept {
    const auto tenth = std::chrono::duration_cast<microseconds>(idle / 10);
    return std::clamp(tenth, microseconds(20), microseconds(500));
}

}  // namespace

void relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

Waiter::Kind Waiter::kind_of(const std::string& name) {
    if (name == "adaptive") return Kind::adaptive;
    if (name == "spin") return Kind::spin;
    if (name == "sleep") return Kind::sleep;
    throw std::invalid_argument("poll: expected adaptive, spin or sleep, got " + name);
}

void Waiter::idle() noexcept {
    const auto idle_time = Clock::now() - idle_since_;
    if (kind_ == Kind::spin || (kind_ == Kind::adaptive && idle_time < kSpin)) {
        for (int i = 0; i < 16; ++i) relax();
        return;
    }
    std::this_thread::sleep_for(step_after(idle_time));
}

}  // namespace gramary::offload
