#pragma once
#include <atomic>
#include <cstdint>
#include <span>

#include "disk/file_set.hpp"
#include "disk/uring_abi.hpp"
#include "disk/uring_mapping.hpp"

namespace gramary {

// One io_uring: its descriptor, the two queues that it shares with the kernel, and the three system
// calls. Prepare as many reads as there is room for, `enter`, and `take` what has come.
//
// Each queue is a circle of entries in shared memory with a head and a tail that only ever grow
// (modulo 2^32; the low bits are the place). The side that adds entries moves the tail, the side
// that takes them the head, so that each of the four has one writer:
//
//   submission tail: ours. Stored with release once the entries before it are written; the kernel
//     loads it with acquire and therefore sees them whole.
//   submission head: the kernel's. Stored with release once the entries before it are copied out;
//     loaded here with acquire before their places count as free.
//   completion tail: the kernel's. Stored with release once the entries before it are written,
//     maybe by an interrupt on another CPU while we look; loaded here with acquire.
//   completion head: ours. Stored with release once the entries before it are copied out, for from
//     then on the kernel may write there.
//
// There is no thread of the kernel's that polls for submissions (SQPOLL): it takes them within our
// own system call alone. So there is no need of a full fence, or of a look whether that thread
// sleeps; on the submission side the program's own order would do, and release and acquire cost
// nothing.
//
// The completion queue is twice as long as the submission queue. With no more reads under way
// (prepared and not taken) than there were entries asked for, it cannot overflow.
//
// Used by one thread at a time, and by one alone where it is the `single_issuer`; the user's lock
// makes one's writes the other's. A forked child may only destroy it.
class UringQueue {
 public:
    struct Read {
        int fd;
        int place;  // of the file in those that were registered
        std::uint8_t* memory;
        std::uint32_t length;
        std::uint64_t offset;
        std::uint64_t user_data;  // comes back with the completion
    };

    // Sets up room for at least `num_entries` reads, with the flags that save interrupts and
    // locks as far as the kernel knows them. 0, or the errno of `failed_call()`. At most once.
    int open(unsigned num_entries, bool single_issuer);
    // What `open` failed in.
    const char* failed_call() const noexcept { return failed_call_; }

    // Lets the kernel look memory and files up once instead of at each read; 0 or an errno. From
    // then on every read must be into this memory, and of these files.
    int register_buffer(const UringMapping& memory);
    int register_files(std::span<const int> fds);

    // The next read to hand in. There must be room.
    void prepare(const Read& read) noexcept {
        uring_abi::SubmissionEntry& entry = entries_[tail_++ & submission_mask_];
        entry = {};
        entry.operation = has_fixed_buffer_ ? uring_abi::kReadFixed : uring_abi::kRead;
        entry.flags = has_fixed_files_ ? uring_abi::kFixedFile : 0;
        entry.fd = has_fixed_files_ ? read.place : read.fd;
        entry.offset = read.offset;
        entry.address = reinterpret_cast<std::uintptr_t>(read.memory);
        entry.length = read.length;
        entry.user_data = read.user_data;
    }
    // Prepared, but not in the kernel's hands.
    unsigned num_prepared() const noexcept { return tail_ - load(submission_head_); }
    // Come, but not taken.
    unsigned num_ready() const noexcept { return load(completion_tail_) - *completion_head_; }
    // Hands in what was prepared, lets the kernel finish what waits for this call, and comes back
    // with `num_awaited` completions ready or for another reason: how many were handed in, or an
    // errno below 0.
    int enter(unsigned num_awaited) noexcept;
    // Lets the kernel finish what waits for a call, and hands nothing in; 0 or an errno below 0.
    int collect() noexcept;
    // Takes all completions that are ready; returns how many.
    template <class Use>
    unsigned take(const Use& use) {
        const unsigned tail = load(completion_tail_);
        const unsigned num_ready = tail - *completion_head_;
        for (unsigned head = *completion_head_; head != tail; ++head) {
            use(completions_[head & completion_mask_]);
        }
        store(completion_head_, tail);
        return num_ready;
    }

 private:
    static unsigned load(unsigned* shared) noexcept {
        return std::atomic_ref<unsigned>(*shared).load(std::memory_order_acquire);
    }
    static void store(unsigned* shared, unsigned value) noexcept {
        std::atomic_ref<unsigned>(*shared).store(value, std::memory_order_release);
    }
    int call_enter(unsigned num_submitted, unsigned num_awaited) noexcept;
    int set_up(unsigned num_entries, bool single_issuer, uring_abi::SetupParameters& parameters);
    int map_queues(const uring_abi::SetupParameters& parameters);
    void find_fields(const uring_abi::SetupParameters& parameters);

    FileDescriptor fd_;
    UringMapping submission_queue_;
    UringMapping completion_queue_;  // part of the other since Linux 5.4
    UringMapping submission_entries_;
    unsigned* submission_head_ = nullptr;
    unsigned* submission_tail_ = nullptr;
    unsigned* completion_head_ = nullptr;
    unsigned* completion_tail_ = nullptr;
    uring_abi::SubmissionEntry* entries_ = nullptr;
    const uring_abi::CompletionEntry* completions_ = nullptr;
    unsigned submission_mask_ = 0;
    unsigned completion_mask_ = 0;
    unsigned tail_ = 0;  // of the submissions prepared; published by `enter`
    bool has_fixed_buffer_ = false;
    bool has_fixed_files_ = false;
    const char* failed_call_ = "";
};

}  // namespace gramary
