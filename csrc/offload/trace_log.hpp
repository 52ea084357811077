#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace gramary::offload {

// What the dispatcher did when: spans on the monotonic clock, kept up to a bound, taken away by
// whoever draws them. Off, a span costs one relaxed load.
class TraceLog {
 public:
    enum class Kind : std::int64_t { wait_previous_request, gather, read_disk, publish };
    struct Span {
        Kind kind;
        std::int64_t lane;  // 0 host, 1 stream
        std::uint64_t number;
        std::int64_t begin_ns;
        std::int64_t end_ns;
    };
    static constexpr std::size_t kMaxSpans = 1 << 16;

    static std::int64_t now_ns() noexcept {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    void enable(bool enabled) noexcept { enabled_.store(enabled); }
    bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }

    // False where the span was dropped: nobody took those before it.
    bool add(const Span& span) {
        if (!enabled()) return true;
        std::lock_guard lock(mutex_);
        if (spans_.size() == kMaxSpans) return false;
        spans_.push_back(span);
        return true;
    }
    std::vector<Span> take() {
        std::lock_guard lock(mutex_);
        return std::exchange(spans_, {});
    }

 private:
    std::atomic<bool> enabled_{false};
    std::mutex mutex_;
    std::vector<Span> spans_;
};

}  // namespace gramary::offload
