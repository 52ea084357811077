#include "disk/uring_ring.hpp"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace gramary {
namespace {

constexpr int kMaxTries = 1000;
// Reads that are answered before the queue is looked at again: half of a lane's.
constexpr unsigned kBunch = 32;

// The kernel is short of memory for the moment, or wants completions taken first.
bool is_shortage(int result) { return result == -EAGAIN || result == -EBUSY; }

std::uint32_t round_up(std::uint32_t value, std::uint32_t unit) {
    return (value + unit - 1) / unit * unit;
}

}  // namespace

UringRing::UringRing(const FileSet& files, const Options& options, DiskStats& stats)
    : files_(files),
      stats_(stats),
      num_entries_(options.num_entries),
      is_lent_(!options.single_issuer),
      slots_(2 * std::size_t{options.num_entries}) {
    // Nothing is allocated while reads are in flight.
    free_slots_.reserve(slots_.size());
    done_.reserve(slots_.size());
}

// Called on threads that no exception may leave.
std::unique_ptr<UringRing> UringRing::try_make(const FileSet& files, const Options& options,
                                               DiskStats& stats, UringRefusal& refusal) try {
    std::unique_ptr<UringRing> ring(new UringRing(files, options, stats));
    refusal = ring->set_up(options);
    return refusal.error == 0 ? std::move(ring) : nullptr;
} catch (const std::bad_alloc&) {
    refusal = {"memory for a ring", ENOMEM};
    return nullptr;
}

UringRefusal UringRing::set_up(const Options& options) {
    if (const int error = queue_.open(num_entries_, options.single_issuer)) {
        return {queue_.failed_call(), error};
    }
    if (const int error = arena_.allocate(options.arena_bytes)) {
        return {"memory for reads through io_uring", error};
    }
    register_resources();
    return try_out();
}

void UringRing::register_resources() {
    if (const int error = queue_.register_buffer(arena_)) {
        shortcoming_ = std::string("io_uring buffers are not registered (") + std::strerror(error) +
                       (error == ENOMEM ? "); raising RLIMIT_MEMLOCK helps"
                                        : "); allowing io_uring_register helps");
    }
    std::vector<int> fds;
    for (std::int64_t i = 0; i < files_.size(); ++i) fds.push_back(files_.buffered_fd(i));
    for (std::int64_t i = 0; files_.direct() && i < files_.size(); ++i) {
        fds.push_back(files_.direct_fd(i));
    }
    (void)queue_.register_files(fds);
}

// Reads no bytes, as all others will be read: who may make a ring may still be forbidden to enter
// it, and a kernel that has rings need not know this operation.
UringRefusal UringRing::try_out() {
    if (files_.size() == 0) return {};
    queue_.prepare({files_.buffered_fd(0), 0, arena_.data(), 0, 0, 0});
    int entered = 0;
    for (int num_tries = 0; num_tries < kMaxTries && queue_.num_ready() == 0; ++num_tries) {
        entered = queue_.enter(1);
        if (entered < 0 && entered != -EINTR && !is_shortage(entered)) break;
        if (entered < 0) ::sched_yield();
    }
    if (queue_.num_ready() == 0) return {"io_uring_enter", entered < 0 ? -entered : EAGAIN};
    std::int32_t result = 0;
    queue_.take([&](const uring_abi::CompletionEntry& entry) { result = entry.result; });
    if (result < 0) return {"a read through io_uring", -result};
    return {};
}

void UringRing::prepare(unsigned slot) {
    const ReadTask& task = *slots_[slot].item.task;
    const BlockRead& read = *slots_[slot].item.read;
    const auto file = file_of(read.address);
    // In flight < entries: there is room.
    queue_.prepare({task.fd_of(read), static_cast<int>(task.direct() ? files_.size() + file : file),
                    memory_of(slot), read.length,
                    static_cast<std::uint64_t>(offset_of(read.address)), slot});
    slots_[slot].is_busy = true;
    ++in_flight_;
}

// Hands in what was prepared and takes what has come; comes back with at least `num_awaited`
// completions, or with some where the kernel wants them taken first, or false when the ring is
// broken.
bool UringRing::submit(unsigned num_awaited) {
    // A lane's completions come only when they are asked for (DEFER_TASKRUN).
    bool asks = !is_lent_;
    for (int num_tries = 0;;) {
        const bool waits = queue_.num_ready() < num_awaited;
        if (!waits && !asks && queue_.num_prepared() == 0) return true;
        asks = false;
        StopWatch watch(waits ? stats_.waiting_ns : stats_.submitting_ns);
        const int result = queue_.enter(waits ? num_awaited : 0);
        const bool is_stuck = is_shortage(result) || (result == 0 && queue_.num_prepared() > 0);
        if (!is_stuck && (result >= 0 || result == -EINTR)) continue;
        if (!is_stuck || ++num_tries > kMaxTries) {
            breakage_ = {"io_uring_enter", result < 0 ? -result : EAGAIN};
            return false;
        }
        (void)queue_.collect();
        if (queue_.num_ready() > 0) return true;
        ::sched_yield();
    }
}

void UringRing::reap() {
    in_flight_ -= queue_.take([this](const uring_abi::CompletionEntry& entry) {
        done_.push_back({static_cast<unsigned>(entry.user_data), entry.result});
    });
}

bool UringRing::is_whole(const Completion& completion) const noexcept {
    return completion.result >= 0 && static_cast<std::uint32_t>(completion.result) >=
                                         slots_[completion.slot].item.read->needed;
}

// Delivers what came whole, the reads of one task together, and reads the rest once more.
void UringRing::answer(std::span<const Completion> completions) {
    Arrival arrivals[kBunch];
    std::size_t num_arrived = 0;
    ReadTask* task = nullptr;
    const auto deliver = [&] {
        if (num_arrived > 0) task->deliver({arrivals, num_arrived});
        num_arrived = 0;
    };
    for (const Completion& completion : completions) {
        const ReadSource::Item& item = slots_[completion.slot].item;
        if (item.task != task) deliver();
        task = item.task;
        if (is_whole(completion)) {
            arrivals[num_arrived++] = {item.read, memory_of(completion.slot)};
        } else if (!task->failed()) {
            DiskStats::add(stats_.num_retries, 1);
            task->retry(*item.read);
        }
    }
    deliver();
}

void UringRing::finish(std::span<const Completion> completions, ReadSource& source) {
    answer(completions);
    for (const Completion& completion : completions) {
        Slot& slot = slots_[completion.slot];
        slot.is_busy = false;
        free_slots_.push_back(completion.slot);
        source.answered(slot.item);
    }
}

// Answers some of the reads that have come, the latest first: their bytes may still lie in the
// processor's cache.
void UringRing::finish_done(ReadSource& source) {
    if (done_.empty()) return;
    StopWatch watch(stats_.scattering_ns);
    const std::size_t count = std::min<std::size_t>(done_.size(), kBunch);
    finish(std::span(done_).last(count), source);
    done_.resize(done_.size() - count);
}

// Answers what is in flight by pread. The kernel may still write to the arena, so it stays mapped
// for good: another use of its addresses would be written over.
void UringRing::abandon(ReadSource& source) {
    if (in_flight_ > 0) arena_.leave();
    while (!done_.empty()) finish_done(source);
    for (unsigned slot = 0; slot < slots_.size(); ++slot) {
        const Completion lost{slot, -EIO};
        if (slots_[slot].is_busy) finish({&lost, 1}, source);
    }
}

void UringRing::fill(ReadSource& source) {
    ReadSource::Item item{};
    while (in_flight_ < most_in_flight_ && !free_slots_.empty() && source.try_next(item)) {
        const unsigned slot = free_slots_.back();
        free_slots_.pop_back();
        slots_[slot].item = item;
        prepare(slot);
    }
    DiskStats::raise(stats_.max_in_flight, in_flight_);
}

void UringRing::drain(ReadSource& source, std::uint32_t longest_read, std::uint32_t alignment) {
    slot_bytes_ = round_up(std::max(longest_read, 64u), std::max(alignment, 64u));
    const std::size_t num_slots = std::min(arena_.num_bytes() / slot_bytes_, slots_.size());
    free_slots_.clear();
    for (std::size_t slot = num_slots; slot > 0; --slot) {
        free_slots_.push_back(static_cast<unsigned>(slot - 1));
    }
    // As long as the page cache has everything, a few reads at a time use the same memory again and
    // again, which stays close to the processor.
    most_in_flight_ = is_lent_ ? kBunch : num_entries_;
    for (;;) {
        fill(source);
        if (in_flight_ == 0 && done_.empty()) return;
        if (is_lent_) {
            if (!submit(0)) return abandon(source);
            // What the page cache held is there already.
            const unsigned num_cached = queue_.num_ready();
            DiskStats::add(stats_.num_cached_reads, num_cached);
            if (num_cached < in_flight_) most_in_flight_ = num_entries_;
        }
        // With nothing to do meanwhile, several are awaited at once: the others keep the device
        // busy, and every waking costs.
        const unsigned num_awaited = done_.empty() ? std::min(kBunch, in_flight_) : 0;
        if (!submit(num_awaited)) return abandon(source);
        // The queue is full again: now a few of those that came before are checked and copied.
        finish_done(source);
        reap();
        // With nothing under way there is nothing to wait for: the same memory serves again.
        if (in_flight_ == 0) finish_done(source);
    }
}

}  // namespace gramary
