#include "disk/read_task.hpp"

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "disk/block_digests.hpp"
#include "disk/positioned_read.hpp"
#include "disk/xxh64.hpp"

namespace gramary {
namespace {

// Reads whose memory is asked for before they are copied.
constexpr std::size_t kAhead = 4;

}  // namespace

// Blocks of a task on their way to being checked, a group at a time.
class ReadTask::BlockCheck {
 public:
    explicit BlockCheck(ReadTask& task) : task_(task) {}

    void add(std::uint64_t address, const std::uint8_t* block) {
        addresses_[count_] = address;
        blocks_[count_] = block;
        const auto number = static_cast<std::uint64_t>(offset_of(address)) / block_bytes();
        seeds_[count_] = task_.checks_.seed + number;
        if (++count_ == kDigestGroup) finish();
    }

    void finish() {
        const std::size_t covered = block_bytes() - sizeof(std::uint64_t);
        std::uint64_t digests[kDigestGroup];
        digest_blocks(blocks_, seeds_, count_, covered, digests);
        for (std::size_t i = 0; i < count_; ++i) {
            const std::uint64_t stored = load_u64_little_endian(blocks_[i] + covered);
            if (stored == digests[i]) continue;
            task_.fail({ReadFailure::Kind::checksum, addresses_[i], 0, stored, digests[i]});
        }
        count_ = 0;
    }

 private:
    std::uint32_t block_bytes() const noexcept { return task_.checks_.block_bytes; }

    ReadTask& task_;
    std::size_t count_ = 0;
    std::uint64_t addresses_[kDigestGroup];
    std::uint64_t seeds_[kDigestGroup];
    const std::uint8_t* blocks_[kDigestGroup];
};

std::uint8_t* ReadTask::destination(const BlockRead& read) const noexcept {
    const Fragment& first = fragments_[read.first_fragment];
    const bool is_whole = read.num_fragments == 1 && read.length == first.width;
    return is_whole && checks_.block_bytes == 0 ? out_ + first.target : nullptr;
}

bool ReadTask::check_blocks(std::span<const Arrival> arrivals) {
    BlockCheck check(*this);
    for (const Arrival& arrival : arrivals) {
        for (std::uint32_t at = 0; at + checks_.block_bytes <= arrival.read->length;
             at += checks_.block_bytes) {
            check.add(arrival.read->address + at, arrival.data + at);
        }
    }
    check.finish();
    return !failed();
}

// Asks for the memory that a copy will touch: bytes that came from storage lie far from this
// processor, and rows of a large output anywhere.
void ReadTask::prefetch(const Arrival& arrival) const noexcept {
    constexpr std::uint32_t kLine = 64;
    for (const Fragment& f : fragments_of(*arrival.read)) {
        for (std::uint32_t byte = 0; byte < f.width; byte += kLine) {
            // What was checked is near already.
            if (checks_.block_bytes == 0) {
                __builtin_prefetch(arrival.data + (f.address - arrival.read->address) + byte);
            }
            __builtin_prefetch(out_ + f.target + byte, 1);
        }
    }
}

void ReadTask::deliver(std::span<const Arrival> arrivals) {
    if (checks_.block_bytes != 0 && !check_blocks(arrivals)) return;
    for (std::size_t i = 0; i < arrivals.size(); ++i) {
        if (i + kAhead < arrivals.size()) prefetch(arrivals[i + kAhead]);
        const auto& [read, data] = arrivals[i];
        for (const Fragment& f : fragments_of(*read)) {
            std::memcpy(out_ + f.target, data + (f.address - read->address), f.width);
        }
    }
}

void ReadTask::retry(const BlockRead& read) {
    // Called on threads that no exception may leave.
    const std::unique_ptr<std::uint8_t[]> buffer(new (std::nothrow) std::uint8_t[read.length]);
    if (buffer == nullptr) {
        fail({ReadFailure::Kind::read, read.address, ENOMEM});
        return;
    }
    const PositionedRead result =
        read_fully(buffered_fd(read), buffer.get(), read.length, offset_of(read.address));
    if (result.bytes >= read.needed) {
        const Arrival arrival{&read, buffer.get()};
        deliver({&arrival, 1});
    } else {
        fail({ReadFailure::Kind::read, read.address + result.bytes, result.error});
    }
}

void ReadTask::fail(const ReadFailure& failure) {
    std::lock_guard lock(failure_mutex_);
    if (!failure_ || failure.address < failure_->address) failure_ = failure;
    failed_.store(true, std::memory_order_relaxed);
}

}  // namespace gramary
