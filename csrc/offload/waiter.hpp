#pragma once
#include <chrono>
#include <string>

namespace gramary::offload {

// Tells the CPU that this thread spins.
void relax() noexcept;

// How an idle service waits: it spins for a while after the last request, then sleeps in steps
// that grow, so that a busy decode loop is answered in about a microsecond and an idle process
// costs next to nothing.
class Waiter {
 public:
    // How long a waiter spins before it sleeps.
    static constexpr std::chrono::milliseconds kSpin{2};

    enum class Kind { adaptive, spin, sleep };

    static Kind kind_of(const std::string& name);

    explicit Waiter(Kind kind) noexcept : kind_(kind) { worked(); }

    // A request was served: the spinning starts anew.
    void worked() noexcept { idle_since_ = Clock::now(); }
    // Nothing was found: waits as long as is due.
    void idle() noexcept;

 private:
    using Clock = std::chrono::steady_clock;
    Kind kind_;
    Clock::time_point idle_since_;
};

}  // namespace gramary::offload
