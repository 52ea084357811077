#ifdef GRAMARY_HAVE_LIBURING
#include "disk/uring_ring.hpp"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace gramary {
namespace {

constexpr int kMaxTries = 1000;
// Reads that are answered before the queue is looked at again: half of a lane's.
constexpr unsigned kBunch = 32;

std::uint32_t round_up(std::uint32_t value, std::uint32_t unit) {
    return (value + unit - 1) / unit * unit;
}

}  // namespace

UringRing::UringRing(const FileSet& files, const Options& options, DiskStats& stats)
    : files_(files),
      stats_(stats),
      num_entries_(options.num_entries),
      arena_bytes_(options.arena_bytes),
      is_lent_(!options.single_issuer),
      slots_(2 * std::size_t{options.num_entries}) {
    // Nothing is allocated while reads are in flight.
    free_slots_.reserve(slots_.size());
    done_.reserve(slots_.size());
}

UringRing::~UringRing() {
    if (is_open_) io_uring_queue_exit(&ring_);
    if (arena_ != nullptr) ::munmap(arena_, arena_bytes_);
}

// Called on threads that no exception may leave.
std::unique_ptr<UringRing> UringRing::try_make(const FileSet& files, const Options& options,
                                               DiskStats& stats, std::string& why) try {
    std::unique_ptr<UringRing> ring(new UringRing(files, options, stats));
    int error = ring->set_up(options.single_issuer);
    if (error == 0) error = ring->try_out();
    if (error != 0) {
        why = std::strerror(error);
        return nullptr;
    }
    void* const arena = ::mmap(nullptr, options.arena_bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (arena == MAP_FAILED) {
        why = std::strerror(errno);
        return nullptr;
    }
    ring->arena_ = static_cast<std::uint8_t*>(arena);
    // A child must not see pages that the kernel may write to for its parent.
    (void)::madvise(arena, options.arena_bytes, MADV_DONTFORK);
    ring->register_resources();
    return ring;
} catch (const std::bad_alloc&) {
    why = "no memory";
    return nullptr;
}

// Asks for the flags that save interrupts and locks, in steps down to none; 0 or an errno.
int UringRing::set_up(bool single_issuer) {
    std::vector<unsigned> steps;
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
    if (single_issuer) {
        steps.push_back(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
        steps.push_back(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN);
    }
#else
    (void)single_issuer;
#endif
#if defined(IORING_SETUP_COOP_TASKRUN)
    steps.push_back(IORING_SETUP_COOP_TASKRUN);
#endif
    steps.push_back(0);
    int error = 0;
    for (const unsigned flags : steps) {
        error = -io_uring_queue_init(num_entries_, &ring_, flags);
        if (error == 0) {
            is_open_ = true;
            return 0;
        }
        if (error != EINVAL) break;  // not a question of flags
    }
    return error;
}

// Hands in nothing and takes it back: who may make a ring may still be forbidden to use it. 0 or an
// errno.
int UringRing::try_out() {
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    int result;
    do {
        result = io_uring_submit_and_wait(&ring_, 1);
    } while (result == -EINTR || (result >= 0 && io_uring_cq_ready(&ring_) == 0));
    io_uring_cq_advance(&ring_, io_uring_cq_ready(&ring_));
    return result < 0 ? -result : 0;
}

void UringRing::register_resources() {
    const iovec memory{arena_, arena_bytes_};
    const int error = -io_uring_register_buffers(&ring_, &memory, 1);
    has_fixed_buffer_ = error == 0;
    if (error != 0) {
        shortcoming_ = std::string("io_uring buffers are not registered (") + std::strerror(error) +
                       (error == ENOMEM ? "); raising RLIMIT_MEMLOCK helps"
                                        : "); allowing io_uring_register helps");
    }
    std::vector<int> fds;
    for (std::int64_t i = 0; i < files_.size(); ++i) fds.push_back(files_.buffered_fd(i));
    for (std::int64_t i = 0; files_.direct() && i < files_.size(); ++i) {
        fds.push_back(files_.direct_fd(i));
    }
    has_fixed_files_ =
        io_uring_register_files(&ring_, fds.data(), static_cast<unsigned>(fds.size())) == 0;
}

void UringRing::prepare(unsigned slot) {
    const ReadTask& task = *slots_[slot].item.task;
    const BlockRead& read = *slots_[slot].item.read;
    const auto file = file_of(read.address);
    const auto offset = static_cast<std::uint64_t>(offset_of(read.address));
    const int plain_fd = task.fd_of(read);
    const int fixed_fd = static_cast<int>(task.direct() ? files_.size() + file : file);
    const int fd = has_fixed_files_ ? fixed_fd : plain_fd;
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);  // in flight < entries: there is one
    if (has_fixed_buffer_) {
        io_uring_prep_read_fixed(entry, fd, memory_of(slot), read.length, offset, 0);
    } else {
        io_uring_prep_read(entry, fd, memory_of(slot), read.length, offset);
    }
    if (has_fixed_files_) entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(entry, slot);
    slots_[slot].is_busy = true;
    ++in_flight_;
}

// Hands in what was prepared and takes what has come; comes back with at least `num_awaited`
// completions.
bool UringRing::submit(unsigned num_awaited) {
    for (int num_tries = 0;; ++num_tries) {
        const bool waits = io_uring_cq_ready(&ring_) < num_awaited;
        // A lane's completions come only when they are asked for (DEFER_TASKRUN).
        const bool asks = !is_lent_ && num_tries == 0;
        if (!waits && !asks && io_uring_sq_ready(&ring_) == 0) return true;
        StopWatch watch(waits ? stats_.waiting_ns : stats_.submitting_ns);
        const int result = waits ? io_uring_submit_and_wait(&ring_, num_awaited)
                                 : io_uring_submit_and_get_events(&ring_);
        if (result >= 0 || result == -EINTR) continue;
        // The kernel may be short of memory for the moment, or want completions taken first.
        if ((result != -EBUSY && result != -EAGAIN) || num_tries > kMaxTries) return false;
        if (io_uring_cq_ready(&ring_) > 0) return true;
        ::sched_yield();
    }
}

void UringRing::reap() {
    unsigned head = 0;
    unsigned num_done = 0;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(&ring_, head, entry) {
        done_.push_back({static_cast<unsigned>(entry->user_data), entry->res});
        ++num_done;
    }
    io_uring_cq_advance(&ring_, num_done);
    in_flight_ -= num_done;
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

// Answers what is in flight by pread; the kernel may still write to the arena, which stays.
void UringRing::abandon(ReadSource& source) {
    is_broken_ = true;
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
    const std::size_t num_slots = std::min(arena_bytes_ / slot_bytes_, slots_.size());
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
            const unsigned num_cached = io_uring_cq_ready(&ring_);
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
#endif
