#ifdef GRAMARY_HAVE_LIBURING
#include "disk/uring_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace gramary {
namespace {

// A lent ring: enough entries for a decode batch in one system call, 512 KiB of memory.
constexpr UringRing::Options kLentRing{256, std::size_t{1} << 19, false};
// From this many reads on a task is worth waking the lanes for.
constexpr std::int64_t kLanesFrom = 4096;

// All reads of one task, in order.
class TaskSource final : public ReadSource {
 public:
    explicit TaskSource(ReadTask& task) : task_(task) {}
    bool try_next(Item& item) override {
        if (next_ == task_.reads().size() || task_.failed()) return false;
        item = {&task_, &task_.reads()[next_++], nullptr};
        return true;
    }
    void answered(const Item&) override {}

 private:
    ReadTask& task_;
    std::size_t next_ = 0;
};

std::uint32_t longest_read(const ReadTask& task) {
    std::uint32_t longest = 0;
    for (const BlockRead& read : task.reads()) longest = std::max(longest, read.length);
    return longest;
}

void read_plainly(ReadTask& task) {
    for (const BlockRead& read : task.reads()) {
        if (task.failed()) return;
        task.retry(read);
    }
}

}  // namespace

UringBackend::UringBackend(const FileSet& files, DiskStats& stats)
    : files_(files), stats_(stats), owner_pid_(getpid()) {}

UringBackend::~UringBackend() {
    if (getpid() != owner_pid_) (void)lanes_.release();
}

std::unique_ptr<UringBackend> UringBackend::try_make(const FileSet& files, DiskStats& stats,
                                                     std::string& why) {
    std::unique_ptr<UringBackend> backend(new UringBackend(files, stats));
    std::unique_ptr<UringRing> first = UringRing::try_make(files, kLentRing, stats, why);
    if (first == nullptr) return nullptr;
    backend->shortcoming_ = first->shortcoming();
    backend->idle_.push_back(std::move(first));
    return backend;
}

std::unique_ptr<UringRing> UringBackend::borrow() {
    {
        std::lock_guard lock(idle_mutex_);
        if (!idle_.empty()) {
            std::unique_ptr<UringRing> ring = std::move(idle_.back());
            idle_.pop_back();
            return ring;
        }
    }
    std::string why;
    return UringRing::try_make(files_, kLentRing, stats_, why);
}

void UringBackend::give_back(std::unique_ptr<UringRing> ring) {
    if (ring == nullptr || ring->is_broken()) return;
    std::lock_guard lock(idle_mutex_);
    idle_.push_back(std::move(ring));
}

UringLanes& UringBackend::lanes() {
    std::call_once(lanes_started_,
                   [this] { lanes_ = std::make_unique<UringLanes>(files_, stats_); });
    return *lanes_;
}

std::int64_t UringBackend::whole_batches_below() const noexcept {
    return getpid() == owner_pid_ ? kLanesFrom : 0;
}

void UringBackend::run(ReadTask& task) {
    const std::uint32_t longest = longest_read(task);
    if (getpid() != owner_pid_ || longest > kLentRing.arena_bytes) {
        read_plainly(task);
    } else if (static_cast<std::int64_t>(task.reads().size()) >= kLanesFrom &&
               longest <= UringLanes::kLongestRead && lanes().is_running()) {
        lanes().run(task);
    } else {
        run_here(task);
    }
}

void UringBackend::run_here(ReadTask& task) {
    TaskSource source(task);
    std::unique_ptr<UringRing> ring = borrow();
    if (ring != nullptr) ring->drain(source, longest_read(task), task.alignment());
    give_back(std::move(ring));
    // No ring to be had, or it broke on the way.
    ReadSource::Item item{};
    while (source.try_next(item)) task.retry(*item.read);
}

}  // namespace gramary
#endif
