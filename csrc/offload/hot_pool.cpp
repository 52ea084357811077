#include "offload/hot_pool.hpp"

#include <algorithm>

#include "offload/waiter.hpp"

namespace gramary::offload {

using Clock = std::chrono::steady_clock;

HotPool::HotPool(int num_threads, std::chrono::microseconds spin) : spin_(spin) {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { worker_loop(); });
}

HotPool::~HotPool() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void HotPool::parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
    if (count <= 0) return;
    if (count <= grain || workers_.empty()) {
        body(0, count);
        return;
    }
    Job job{&body, count, grain};
    job_ = &job;
    ++generation_;
    if (count >= kWakeFrom && num_asleep_ > 0) {
        // Taken and let go: whoever is about to sleep sees the new generation or the notice.
        {
            std::lock_guard lock(mutex_);
        }
        wake_.notify_all();
    }
    work_on(job);
    // In this order, and sequentially consistent: a worker counts itself in before it looks for
    // the job, so it finds none or is waited for.
    job_ = nullptr;
    while (num_inside_ > 0) relax();
}

void HotPool::worker_loop() {
    std::uint64_t seen = 0;
    while (await_job(seen)) {
        seen = generation_;
        ++num_inside_;
        if (Job* job = job_) work_on(*job);
        --num_inside_;
    }
}

bool HotPool::await_job(std::uint64_t seen) {
    const auto until = Clock::now() + spin_;
    do {
        for (int i = 0; i < 64; ++i) {
            if (stopping_) return false;
            if (generation_ != seen) return true;
            relax();
        }
    } while (Clock::now() < until);
    std::unique_lock lock(mutex_);
    ++num_asleep_;
    wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
    --num_asleep_;
    return !stopping_;
}

void HotPool::work_on(Job& job) {
    for (;;) {
        const std::int64_t begin = job.next.fetch_add(job.grain, std::memory_order_relaxed);
        if (begin >= job.count) return;
        (*job.body)(begin, std::min(begin + job.grain, job.count));
    }
}

}  // namespace gramary::offload
