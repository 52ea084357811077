#include "base/thread_pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "base/start_threads.hpp"

namespace gramary {
namespace {
std::atomic<int> requested_num_threads{0};
}

struct ThreadPool::Job {
    const Body* body;
    std::int64_t count;
    std::int64_t grain;
    std::atomic<std::int64_t> next{0};
    std::mutex error_mutex;
    std::exception_ptr error;
};

ThreadPool::ThreadPool(int num_threads) : owner_pid_(getpid()) {
    start_threads(workers_, num_threads - 1, [this](int) { worker_loop(); });
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void ThreadPool::work_on(Job& job) {
    for (;;) {
        const std::int64_t begin = job.next.fetch_add(job.grain, std::memory_order_relaxed);
        if (begin >= job.count) return;
        try {
            (*job.body)(begin, std::min(begin + job.grain, job.count));
        } catch (...) {
            std::lock_guard lock(job.error_mutex);
            if (!job.error) job.error = std::current_exception();
        }
    }
}

void ThreadPool::worker_loop() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [&] { return stopping_ || (job_ != nullptr && generation_ != seen); });
        if (stopping_) return;
        seen = generation_;
        Job* job = job_;
        ++active_;
        lock.unlock();
        work_on(*job);
        lock.lock();
        if (--active_ == 0) idle_.notify_all();
    }
}

bool ThreadPool::is_for_caller(std::int64_t count, std::int64_t grain) const {
    return count <= std::max<std::int64_t>(grain, 1) || workers_.empty() || getpid() != owner_pid_;
}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
    if (count <= 0) return;
    if (is_for_caller(count, grain)) return body(0, count);
    std::lock_guard turn(turn_);
    share(count, grain, body);
}

bool ThreadPool::try_parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
    if (count <= 0) return true;
    if (is_for_caller(count, grain)) {
        body(0, count);
        return true;
    }
    std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn) return false;
    share(count, grain, body);
    return true;
}

// With the turn taken.
void ThreadPool::share(std::int64_t count, std::int64_t grain, const Body& body) {
    Job job{&body, count, std::max<std::int64_t>(grain, 1)};
    {
        std::lock_guard lock(mutex_);
        job_ = &job;
        ++generation_;
    }
    wake_.notify_all();
    work_on(job);
    {
        // Clearing job_ under the lock keeps late wakers out; then the active ones are awaited.
        std::unique_lock lock(mutex_);
        job_ = nullptr;
        idle_.wait(lock, [&] { return active_ == 0; });
    }
    if (job.error) std::rethrow_exception(job.error);
}

int ThreadPool::default_num_threads() {
    const int requested = requested_num_threads.load();
    if (requested > 0) return requested;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1u, std::thread::hardware_concurrency());
}

void ThreadPool::set_default_num_threads(int num_threads) { requested_num_threads = num_threads; }

ThreadPool& ThreadPool::shared() {
    // Never destroyed: worker threads may outlive static destructors at interpreter exit.
    static ThreadPool* pool = new ThreadPool(default_num_threads());
    return *pool;
}

}  // namespace gramary
