#include "disk/read_task.hpp"

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "disk/positioned_read.hpp"
#include "disk/xxh64.hpp"

namespace gramary {

std::uint8_t* ReadTask::destination(const BlockRead& read) const noexcept {
    const Fragment& first = fragments_[read.first_fragment];
    const bool is_whole = read.num_fragments == 1 && read.length == first.width;
    return is_whole && checks_.block_bytes == 0 ? out_ + first.target : nullptr;
}

bool ReadTask::check_blocks(const BlockRead& read, const std::uint8_t* data) {
    const std::uint32_t block_bytes = checks_.block_bytes;
    for (std::uint32_t at = 0; at + block_bytes <= read.length; at += block_bytes) {
        const std::uint8_t* block = data + at;
        const std::uint64_t number =
            static_cast<std::uint64_t>(offset_of(read.address + at)) / block_bytes;
        const std::uint64_t computed =
            xxh64(block, block_bytes - sizeof(std::uint64_t), checks_.seed + number);
        const std::uint64_t stored =
            load_u64_little_endian(block + block_bytes - sizeof(std::uint64_t));
        if (stored != computed) {
            fail({ReadFailure::Kind::checksum, read.address + at, 0, stored, computed});
            return false;
        }
    }
    return true;
}

void ReadTask::deliver(const BlockRead& read, const std::uint8_t* data) {
    if (checks_.block_bytes != 0 && !check_blocks(read, data)) return;
    for (const Fragment& f : fragments_.subspan(read.first_fragment, read.num_fragments)) {
        std::memcpy(out_ + f.target, data + (f.address - read.address), f.width);
    }
}

void ReadTask::prefetch(const BlockRead& read, const std::uint8_t* data) const noexcept {
    constexpr std::uint32_t kLine = 64;
    // Of a block that is checked whole, the processor finds the rest by itself.
    if (checks_.block_bytes != 0) __builtin_prefetch(data);
    for (const Fragment& f : fragments_.subspan(read.first_fragment, read.num_fragments)) {
        for (std::uint32_t byte = 0; byte < f.width; byte += kLine) {
            __builtin_prefetch(data + (f.address - read.address) + byte);
            __builtin_prefetch(out_ + f.target + byte, 1);
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
        deliver(read, buffer.get());
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
