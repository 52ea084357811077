#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "disk/disk_stats.hpp"
#include "disk/file_set.hpp"
#include "disk/read_task.hpp"
#include "disk/uring_mapping.hpp"
#include "disk/uring_queue.hpp"
#include "disk/uring_refusal.hpp"

namespace gramary {

// Where a ring finds its next read. A read that was handed out is answered through its task and
// then reported back once.
class ReadSource {
 public:
    struct Item {
        ReadTask* task;
        const BlockRead* read;
        void* owner;  // the source's own
    };
    virtual ~ReadSource() = default;
    // Never blocks; false when there is nothing to read now.
    virtual bool try_next(Item& item) = 0;
    virtual void answered(const Item& item) = 0;
};

// Reads through one io_uring, with memory and files registered where the limits allow it.
//
// Reads land in the ring's own memory, never in a caller's, so that nothing the kernel still holds
// can outlive a call. At most num_entries reads are in flight, half the completion queue, which
// therefore cannot overflow; there is memory for twice as many, so that the next reads are under
// way while those that came are copied out. Used by one thread at a time; with `single_issuer` only
// by the thread that made it. After an error of the ring itself it is broken: reads are answered by
// pread and the owner should make another.
class UringRing {
 public:
    struct Options {
        unsigned num_entries;
        std::size_t arena_bytes;
        bool single_issuer;
    };
    // nullptr when the kernel refuses, or has no memory for it; `refusal` then says so.
    static std::unique_ptr<UringRing> try_make(const FileSet& files, const Options& options,
                                               DiskStats& stats, UringRefusal& refusal);
    UringRing(const UringRing&) = delete;
    UringRing& operator=(const UringRing&) = delete;

    // Reads until the source has nothing more and every read taken from it is answered; a broken
    // ring leaves the rest in the source. No read may be longer than the arena.
    void drain(ReadSource& source, std::uint32_t longest_read, std::uint32_t alignment);

    bool is_broken() const noexcept { return breakage_.error != 0; }
    // What broke it.
    const UringRefusal& breakage() const noexcept { return breakage_; }
    // What the kernel did not grant, or empty.
    const std::string& shortcoming() const noexcept { return shortcoming_; }

 private:
    struct Slot {
        ReadSource::Item item;
        bool is_busy = false;  // from being prepared until its read is answered
    };
    struct Completion {
        unsigned slot;
        std::int32_t result;
    };

    UringRing(const FileSet& files, const Options& options, DiskStats& stats);
    UringRefusal set_up(const Options& options);
    UringRefusal try_out();
    void register_resources();
    void fill(ReadSource& source);
    void prepare(unsigned slot);
    bool submit(unsigned num_awaited);
    void reap();
    bool is_whole(const Completion& completion) const noexcept;
    void answer(std::span<const Completion> completions);
    void finish(std::span<const Completion> completions, ReadSource& source);
    void finish_done(ReadSource& source);
    void abandon(ReadSource& source);
    std::uint8_t* memory_of(unsigned slot) const noexcept {
        return arena_.data() + slot * slot_bytes_;
    }

    const FileSet& files_;
    DiskStats& stats_;
    // Destroyed after the queue, whose reads land in it.
    UringMapping arena_;
    UringQueue queue_;
    unsigned num_entries_;
    bool is_lent_;
    std::size_t slot_bytes_ = 0;
    std::vector<Slot> slots_;
    std::vector<unsigned> free_slots_;
    std::vector<Completion> done_;  // come, not answered yet
    unsigned in_flight_ = 0;
    unsigned most_in_flight_ = 0;
    UringRefusal breakage_;
    std::string shortcoming_;
};

}  // namespace gramary
