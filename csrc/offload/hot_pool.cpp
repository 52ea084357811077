#include "offload/hot_pool.hpp"

#include <algorithm>

#include "base/start_threads.hpp"
#include "offload/waiter.hpp"

namespace gramary::offload {
namespace {

using Clock = std::chrono::steady_clock;

// Pieces of a short range are at least this part of a grain: handing one over costs cache misses.
constexpr std::int64_t kLeastPart = 4;

}  // namespace

HotPool::HotPool(int num_threads, std::chrono::microseconds spin)
    : spin_(spin), express_(*this, num_threads - 1), regular_(*this, num_threads - 1) {
    start_threads(workers_, num_threads - 1, [this](int i) { worker_loop(i); });
}

void HotPool::stop() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
}

std::int64_t HotPool::piece_of(std::int64_t count, std::int64_t grain) const noexcept {
    const auto threads = static_cast<std::int64_t>(workers_.size()) + 1;
    const std::int64_t least = std::max<std::int64_t>(grain / kLeastPart, 1);
    return std::clamp((count + threads - 1) / threads, least, std::max(grain, least));
}

HotPool::Desk::Desk(HotPool& pool, int num_workers)
    : pool_(pool), signs_(static_cast<std::size_t>(std::max(num_workers, 0))) {}

void HotPool::Desk::parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
    if (count <= 0) return;
    const std::int64_t piece = pool_.piece_of(count, grain);
    if (count <= piece || pool_.workers_.empty()) {
        body(0, count);
        return;
    }
    Job job{body, count, piece};
    job_ = &job;
    if (count >= grain) pool_.wake_some();
    while (work_once(job)) {
    }
    await_workers();
}

// Sequentially consistent, as everything about job_: the job is off the desk before signs are
// looked at, and a worker shows its sign before it looks for the job, so it finds none or is waited
// for.
void HotPool::Desk::await_workers() {
    job_ = nullptr;
    SpinWait wait;
    for (const Sign& sign : signs_) {
        while (sign.is_inside) wait.once();
    }
}

void HotPool::Desk::help(int worker, const Desk* other) {
    if (!has_work()) return;
    std::atomic<bool>& is_inside = signs_[static_cast<std::size_t>(worker)].is_inside;
    is_inside = true;
    if (Job* job = job_) {
        __builtin_prefetch(&job->body);
        while ((other == nullptr || !other->has_work()) && work_once(*job)) {
        }
    }
    is_inside.store(false, std::memory_order_release);
}

bool HotPool::Desk::work_once(Job& job) {
    const std::int64_t begin = job.next.fetch_add(job.piece, std::memory_order_relaxed);
    if (begin >= job.count) return false;
    const std::int64_t end = std::min(begin + job.piece, job.count);
    if (end == job.count) {
        // The last piece is taken: nobody else need look.
        Job* listed = &job;
        job_.compare_exchange_strong(listed, nullptr);
    }
    job.body(begin, end);
    return end < job.count;
}

void HotPool::worker_loop(int worker) {
    while (await_work()) {
        express_.help(worker, nullptr);
        regular_.help(worker, &express_);
    }
}

bool HotPool::await_work() {
    const auto until = Clock::now() + spin_;
    SpinWait wait;
    do {
        for (int i = 0; i < 64; ++i) {
            if (stopping_) return false;
            if (has_work()) return true;
            wait.once();
        }
    } while (Clock::now() < until);
    std::unique_lock lock(mutex_);
    ++num_asleep_;
    wake_.wait(lock, [&] { return stopping_ || has_work(); });
    --num_asleep_;
    lock.unlock();
    if (stopping_) return false;
    wake_some();
    return true;
}

void HotPool::wake_some() {
    if (num_asleep_ == 0) return;
    // Taken and let go: whoever is about to sleep sees the work or the notice.
    {
        std::lock_guard lock(mutex_);
    }
    wake_.notify_one();
    wake_.notify_one();
}

}  // namespace gramary::offload
