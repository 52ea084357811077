#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace gramary::offload {

// Workers that split one index range at a time and stay awake for a while between ranges, so that
// a range of a few microseconds is worth splitting.
//
// A small range is shared with the workers that happen to be awake, and wakes nobody: waking one
// takes longer than the work. One caller at a time, always the same thread or threads in turn; the
// calling thread works too. A body must not throw.
// Invariant: no worker touches a job after parallel_for returned. The destructor joins.
class HotPool {
 public:
    using Body = std::function<void(std::int64_t begin, std::int64_t end)>;

    // Ranges from this size on wake sleeping workers.
    static constexpr std::int64_t kWakeFrom = 2048;

    // `spin`: how long a worker stays awake behind its last job.
    HotPool(int num_threads, std::chrono::microseconds spin);
    ~HotPool();
    HotPool(const HotPool&) = delete;
    HotPool& operator=(const HotPool&) = delete;

    // Calls body(begin, end) over disjoint pieces of at most `grain` that cover [0, count).
    void parallel_for(std::int64_t count, std::int64_t grain, const Body& body);

 private:
    struct Job {
        const Body* body;
        std::int64_t count;
        std::int64_t grain;
        std::atomic<std::int64_t> next{0};
    };
    void worker_loop();
    // Waits for a job newer than `seen`; false when it is time to end.
    bool await_job(std::uint64_t seen);
    static void work_on(Job& job);

    const std::chrono::microseconds spin_;
    std::atomic<Job*> job_{nullptr};
    std::atomic<std::uint64_t> generation_{0};
    std::atomic<int> num_inside_{0};  // workers that may hold the job
    std::atomic<int> num_asleep_{0};
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
};

}  // namespace gramary::offload
