#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/pool.hpp"

namespace gramary::offload {

// Workers that stay awake for a while behind their last work, so that a range of a few
// microseconds is worth splitting, and that two threads may give work to: through `express` and
// through `regular`. A worker leaves a regular range between two pieces for an express one.
//
// A worker that is awake finds a range within a cache line's way; sleeping ones are woken for
// ranges of a grain and more, by their callers one or two, who wake the next. Pieces are a grain
// for long ranges and shorter for short ones, so that all who are awake have some.
// Each of the two is used by one thread at a time. A body must not throw.
// Invariant: no worker touches a job after parallel_for returned.
class HotPool {
 public:
    // num_threads: who may work on one range, its caller included.
    // spin: how long a worker stays awake behind its last work.
    HotPool(int num_threads, std::chrono::microseconds spin);
    ~HotPool() { stop(); }
    HotPool(const HotPool&) = delete;
    HotPool& operator=(const HotPool&) = delete;

    // Ends the workers; from then on callers work alone. Not while a range is worked on.
    void stop();

    Pool& express() noexcept { return express_; }
    Pool& regular() noexcept { return regular_; }

    // The longest piece that a range is cut into.
    std::int64_t piece_of(std::int64_t count, std::int64_t grain) const noexcept;

 private:
    static constexpr std::size_t kLine = 64;

    // What a worker needs lies in two lines, which it asks for together: each that it finds only by
    // way of another costs it a core's distance before it begins.
    struct alignas(kLine) Job {
        Pool::Body body;
        std::int64_t count;
        std::int64_t piece;
        alignas(kLine) std::atomic<std::int64_t> next{0};
    };

    // Where one thread's ranges are found.
    class Desk final : public Pool {
     public:
        Desk(HotPool& pool, int num_workers);
        void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) override;

        bool has_work() const noexcept { return job_.load() != nullptr; }
        // Works on what is there until it is used up, or until `other` has work.
        void help(int worker, const Desk* other);

     private:
        // A worker's sign that it may hold the job. Each has a line of its own: one counter for all
        // would go from core to core twice for every worker.
        struct alignas(kLine) Sign {
            std::atomic<bool> is_inside{false};
        };

        // Takes a piece; false once none is left. Whoever takes the last takes the job off the
        // desk.
        bool work_once(Job& job);
        void await_workers();

        HotPool& pool_;
        alignas(kLine) std::atomic<Job*> job_{nullptr};
        std::vector<Sign> signs_;
    };

    bool has_work() const noexcept { return express_.has_work() || regular_.has_work(); }
    void worker_loop(int worker);
    // Waits for work; false when it is time to end.
    bool await_work();
    void wake_some();

    const std::chrono::microseconds spin_;
    Desk express_;
    Desk regular_;
    alignas(kLine) std::atomic<bool> stopping_{false};
    alignas(kLine) std::atomic<int> num_asleep_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
};

}  // namespace gramary::offload
