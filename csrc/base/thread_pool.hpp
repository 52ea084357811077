#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/pool.hpp"

namespace gramary {

// A fixed set of workers that sleep between ranges.
//
// A range no longer than one grain runs on the calling thread alone, without waking anybody; the
// pieces of a longer one have a grain each. Calls from several threads take turns.
// An exception from a body is rethrown in the caller after every piece has ended.
// Invariant: no worker touches a job after parallel_for returned. The destructor joins.
// A forked child has no workers: parallel_for then runs on the caller alone.
class ThreadPool final : public Pool {
 public:
    // With fewer threads where the machine refuses more.
    explicit ThreadPool(int num_threads);
    ~ThreadPool() override;
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    // Threads that can work on one range, the caller included.
    int num_threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

    void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) override;
    // The same, or false at once where another call has the workers.
    bool try_parallel_for(std::int64_t count, std::int64_t grain, const Body& body);

    // The process-wide pool, made at first use with default_num_threads() threads.
    static ThreadPool& shared();
    // CPUs this process may run on, at least 1, or what set_default_num_threads was given
    // before the shared pool was made.
    static int default_num_threads();
    static void set_default_num_threads(int num_threads);

 private:
    struct Job;
    void worker_loop();
    static void work_on(Job& job);
    bool is_for_caller(std::int64_t count, std::int64_t grain) const;
    void share(std::int64_t count, std::int64_t grain, const Body& body);

    std::mutex turn_;  // one job at a time
    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable idle_;
    Job* job_ = nullptr;
    std::uint64_t generation_ = 0;
    int active_ = 0;
    bool stopping_ = false;
    int owner_pid_;
    std::vector<std::thread> workers_;
};

}  // namespace gramary
