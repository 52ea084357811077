#include "disk/uring_lane.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/start_threads.hpp"
#include "base/thread_pool.hpp"

namespace gramary {
namespace {

constexpr std::uint32_t kSlotBytes = UringLanes::kLongestRead;
constexpr int kMaxLanes = 8;
constexpr std::size_t kSliceReads = 32;

}  // namespace

struct UringLanes::Job {
    ReadTask* task;
    std::size_t next = 0;  // first read not handed out
    std::atomic<std::size_t> num_unanswered;
};

// Hands a lane the reads of its current slice, then of the next one.
class UringLanes::LaneSource final : public ReadSource {
 public:
    explicit LaneSource(UringLanes& lanes) : lanes_(lanes) {}

    bool try_next(Item& item) override {
        if (next_ == end_ && !lanes_.take_slice(job_, next_, end_)) return false;
        item = {job_->task, &job_->task->reads()[next_++], job_};
        return true;
    }
    void answered(const Item& item) override {
        lanes_.count_answered(*static_cast<Job*>(item.owner), 1);
    }

 private:
    UringLanes& lanes_;
    Job* job_ = nullptr;
    std::size_t next_ = 0;
    std::size_t end_ = 0;
};

int UringLanes::num_lanes() {
    const int num_cpus = ThreadPool::default_num_threads();
    return std::clamp(num_cpus / 2, std::min(num_cpus, 2), kMaxLanes);
}

UringLanes::UringLanes(const FileSet& files, UringSupply& supply) : files_(files), supply_(supply) {
    num_starting_ = num_lanes();
    const int num_wanted = num_starting_;
    start_threads(threads_, num_wanted, [this](int) { serve(); });
    std::unique_lock lock(mutex_);
    num_starting_ -= num_wanted - static_cast<int>(threads_.size());
    done_.wait(lock, [&] { return num_starting_ == 0; });
}

UringLanes::~UringLanes() {
    {
        std::lock_guard lock(mutex_);
        is_stopping_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
}

void UringLanes::serve() {
    const UringRing::Options options{kDepth, 2 * std::size_t{kDepth} * kSlotBytes, true};
    std::unique_ptr<UringRing> ring = supply_.try_make(options);
    {
        std::lock_guard lock(mutex_);
        --num_starting_;
        num_running_ += ring != nullptr;
    }
    done_.notify_all();
    if (ring == nullptr) return;
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return is_stopping_ || !jobs_.empty(); });
            if (is_stopping_) return;
        }
        LaneSource source(*this);
        if (ring != nullptr) ring->drain(source, kSlotBytes, files_.direct_alignment());
        if (ring == nullptr || ring->is_broken()) {
            if (ring != nullptr) supply_.note_broken(*std::exchange(ring, nullptr));
            // What the ring left is read by pread; the next task gets a new ring.
            ReadSource::Item item{};
            while (source.try_next(item)) {
                item.task->retry(*item.read);
                source.answered(item);
            }
            ring = supply_.try_make(options);
        }
    }
}

bool UringLanes::take_slice(Job*& job, std::size_t& begin, std::size_t& end) {
    std::lock_guard lock(mutex_);
    while (!jobs_.empty()) {
        Job* const front = jobs_.front();
        jobs_.pop_front();
        const std::size_t count = front->task->reads().size();
        if (front->task->failed()) {
            count_skipped(*front, count - front->next);
            continue;
        }
        job = front;
        begin = front->next;
        end = std::min(begin + kSliceReads, count);
        front->next = end;
        // Tasks take turns.
        if (end < count) jobs_.push_back(front);
        return true;
    }
    return false;
}

// The job may be gone once its last read is counted: nothing of it is touched afterwards.
void UringLanes::count_answered(Job& job, std::size_t count) {
    if (job.num_unanswered.fetch_sub(count, std::memory_order_acq_rel) != count) return;
    std::lock_guard lock(mutex_);
    done_.notify_all();
}

void UringLanes::count_skipped(Job& job, std::size_t count) {
    job.num_unanswered.fetch_sub(count, std::memory_order_acq_rel);
    done_.notify_all();
}

void UringLanes::run(ReadTask& task) {
    if (task.reads().empty()) return;
    Job job{&task, 0, task.reads().size()};
    std::unique_lock lock(mutex_);
    jobs_.push_back(&job);
    wake_.notify_all();
    done_.wait(lock, [&] { return job.num_unanswered.load(std::memory_order_acquire) == 0; });
}

}  // namespace gramary
