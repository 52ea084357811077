#include "offload/hot_pool.hpp"

#include <algorithm>

#include "offload/waiter.hpp"

namespace gramary::offload {
namespace {

using Clock = std::chrono::steady_clock;

// Pieces of a short range are at least this part of a grain: handing one over costs a cache miss.
constexpr std::int64_t kLeastPart = 8;
// Pieces a thread, so that one that comes late finds less left.
constexpr std::int64_t kPiecesEach = 2;

}  // namespace

HotPool::HotPool(int num_threads, std::chrono::microseconds spin) : spin_(spin) {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { worker_loop(); });
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
    return std::clamp(count / (threads * kPiecesEach), least, std::max(grain, least));
}

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
    // Sequentially consistent, as everything about job_: a worker counts itself in before it looks
    // for the job, so it finds none or is waited for.
    SpinWait wait;
    while (num_inside_ > 0) wait.once();
}

void HotPool::Desk::help(const Desk* other) {
    ++num_inside_;
    if (Job* job = job_) {
        while ((other == nullptr || !other->has_work()) && work_once(*job)) {
        }
    }
    --num_inside_;
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

void HotPool::worker_loop() {
    while (await_work()) {
        express_.help(nullptr);
        regular_.help(&express_);
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
