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

UringBackend::UringBackend(const FileSet& files, DiskStats& stats, int num_pread_threads)
    : files_(files), supply_(files, stats), pread_(num_pread_threads), owner_pid_(getpid()) {}

UringBackend::~UringBackend() {
    if (is_forked()) (void)lanes_.release();
}

bool UringBackend::is_forked() const noexcept { return getpid() != owner_pid_; }

std::unique_ptr<UringBackend> UringBackend::try_make(const FileSet& files, DiskStats& stats,
                                                     int num_pread_threads, UringRefusal& refusal) {
    std::unique_ptr<UringBackend> backend(new UringBackend(files, stats, num_pread_threads));
    std::unique_ptr<UringRing> first = UringRing::try_make(files, kLentRing, stats, refusal);
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
    return supply_.try_make(kLentRing);
}

void UringBackend::give_back(std::unique_ptr<UringRing> ring) {
    if (ring->is_broken()) return supply_.note_broken(*ring);
    std::lock_guard lock(idle_mutex_);
    idle_.push_back(std::move(ring));
}

UringLanes& UringBackend::lanes() {
    std::call_once(lanes_started_,
                   [this] { lanes_ = std::make_unique<UringLanes>(files_, supply_); });
    return *lanes_;
}

std::int64_t UringBackend::whole_batches_below() const noexcept {
    return is_usable() ? kLanesFrom : 0;
}

std::string UringBackend::shortcoming() const {
    // The parent may have held any lock when it forked.
    if (is_forked()) return "a forked process reads rows by pread: the io_uring is its parent's";
    const UringRefusal refusal = supply_.refusal();
    if (refusal.error == 0) return shortcoming_;
    const char* const what = supply_.is_lost()
                                 ? "io_uring was lost, rows are read by pread: "
                                 : "io_uring was short, some batches were read by pread: ";
    return what + refusal.describe();
}

void UringBackend::run(ReadTask& task) {
    const std::uint32_t longest = longest_read(task);
    if (is_forked()) {
        read_plainly(task);
    } else if (supply_.is_lost() || longest > kLentRing.arena_bytes) {
        pread_.run(task);
    } else if (static_cast<std::int64_t>(task.reads().size()) >= kLanesFrom &&
               longest <= UringLanes::kLongestRead && lanes().is_running()) {
        lanes().run(task);
    } else {
        run_here(task);
    }
}

void UringBackend::run_here(ReadTask& task) {
    std::unique_ptr<UringRing> ring = borrow();
    if (ring == nullptr) return pread_.run(task);
    TaskSource source(task);
    ring->drain(source, longest_read(task), task.alignment());
    give_back(std::move(ring));
    // It broke on the way.
    ReadSource::Item item{};
    while (source.try_next(item)) task.retry(*item.read);
}

}  // namespace gramary
