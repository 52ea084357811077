#pragma once
#include <chrono>
#include <string>

namespace gramary::offload {

// Tells the CPU that this thread spins.
void relax() noexcept;

// Waiting for another thread that works right now: spins, and lets others have the CPU where that
// takes so long that the thread may be waiting for one.
class SpinWait {
 public:
    void once() noexcept;

 private:
    static constexpr int kRounds = 2000;
    int rounds_ = 0;
};

// How an idle service waits: it spins for a while after the last request, then sleeps in steps
// that grow, so that a busy decode loop is answered in about a microsecond and an idle process
// costs next to nothing.
class Waiter {
 public:
    // How long a waiter spins before it sleeps, unless told otherwise.
    static constexpr std::chrono::microseconds kSpin{2000};

    enum class Kind { adaptive, spin, sleep };

    static Kind kind_of(const std::string& name);

    explicit Waiter(Kind kind, std::chrono::microseconds spin = kSpin) noexcept
        : kind_(kind), spin_(spin) {
        worked();
    }

    // A request was served: the spinning starts anew.
    void worked() noexcept {
        idle_since_ = Clock::now();
        spinning_ = {};
    }
    // Nothing was found: waits as long as is due.
    void idle() noexcept;
    // Lets sleeps of this thread end when they are due; the kernel's default is 50 us later.
    static void sleep_precisely() noexcept;

 private:
    using Clock = std::chrono::steady_clock;
    Kind kind_;
    std::chrono::microseconds spin_;
    Clock::time_point idle_since_;
    SpinWait spinning_;
};

}  // namespace gramary::offload
