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

std::uint32_t round_up(std::uint32_t value, std::uint32_t unit) {
    return (value + unit - 1) / unit * unit;
}

}  // namespace

UringRing::UringRing(const FileSet& files, const Options& options, DiskStats& stats)
    : files_(files),
      stats_(stats),
      num_entries_(options.num_entries),
      arena_bytes_(options.arena_bytes),
      waits_at_once_(options.single_issuer),
      slots_(options.num_entries) {}

UringRing::~UringRing() {
    if (is_open_) io_uring_queue_exit(&ring_);
    if (arena_ != nullptr) ::munmap(arena_, arena_bytes_);
}

std::unique_ptr<UringRing> UringRing::try_make(const FileSet& files, const Options& options,
                                               DiskStats& stats, std::string& why) {
    std::unique_ptr<UringRing> ring(new UringRing(files, options, stats));
    const int error = ring->set_up(options.single_issuer);
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

void UringRing::register_resources() {
    const iovec memory{arena_, arena_bytes_};
    const int error = -io_uring_register_buffers(&ring_, &memory, 1);
    has_fixed_buffer_ = error == 0;
    if (error != 0) {
        shortcoming_ = std::string("io_uring buffers are not registered (") + std::strerror(error) +
                       "); raising RLIMIT_MEMLOCK helps";
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

// Hands prepared reads to the kernel and comes back with at least one completion. A ring of its
// own thread asks for both in one call. A lent ring asks first, so that what the page cache held
// is told from what had to be waited for.
bool UringRing::submit_and_wait() {
    for (int num_tries = 0; num_tries < kMaxTries; ++num_tries) {
        const int result =
            waits_at_once_ ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit(&ring_);
        if (result >= 0 || io_uring_cq_ready(&ring_) > 0) break;
        if (result == -EINTR) continue;
        // The kernel is short of memory for the moment.
        if (result != -EBUSY && result != -EAGAIN) return false;
        ::sched_yield();
    }
    if (const unsigned num_ready = io_uring_cq_ready(&ring_); num_ready > 0) {
        if (!waits_at_once_) DiskStats::add(stats_.num_cached_reads, num_ready);
        return true;
    }
    io_uring_cqe* entry = nullptr;
    int result;
    do {
        result = io_uring_wait_cqe(&ring_, &entry);
    } while (result == -EINTR);
    return result == 0;
}

void UringRing::complete(unsigned slot, std::int32_t result, ReadSource& source) {
    const ReadSource::Item item = slots_[slot].item;
    slots_[slot].is_busy = false;
    free_slots_.push_back(slot);
    --in_flight_;
    if (result >= 0 && static_cast<std::uint32_t>(result) >= item.read->needed) {
        item.task->deliver(*item.read, memory_of(slot));
    } else if (!item.task->failed()) {
        DiskStats::add(stats_.num_retries, 1);
        item.task->retry(*item.read);
    }
    source.answered(item);
}

// Answers what is in flight by pread; the kernel may still write to the arena, which stays.
void UringRing::abandon(ReadSource& source) {
    is_broken_ = true;
    for (unsigned slot = 0; slot < num_entries_; ++slot) {
        if (slots_[slot].is_busy) complete(slot, -EIO, source);
    }
}

void UringRing::drain(ReadSource& source, std::uint32_t longest_read, std::uint32_t alignment) {
    slot_bytes_ = round_up(std::max(longest_read, 64u), std::max(alignment, 64u));
    const auto num_slots =
        static_cast<unsigned>(std::min<std::size_t>(arena_bytes_ / slot_bytes_, num_entries_));
    free_slots_.clear();
    for (unsigned slot = num_slots; slot > 0; --slot) free_slots_.push_back(slot - 1);
    ReadSource::Item item{};
    for (;;) {
        while (!is_broken_ && !free_slots_.empty() && source.try_next(item)) {
            const unsigned slot = free_slots_.back();
            free_slots_.pop_back();
            slots_[slot].item = item;
            prepare(slot);
        }
        if (in_flight_ == 0) return;
        DiskStats::raise(stats_.max_in_flight, in_flight_);
        if (!submit_and_wait()) {
            abandon(source);
            return;
        }
        StopWatch watch(stats_.scattering_ns);
        unsigned head = 0;
        unsigned num_done = 0;
        io_uring_cqe* entry = nullptr;
        io_uring_for_each_cqe(&ring_, head, entry) {
            complete(static_cast<unsigned>(entry->user_data), entry->res, source);
            ++num_done;
        }
        io_uring_cq_advance(&ring_, num_done);
    }
}

}  // namespace gramary
#endif
