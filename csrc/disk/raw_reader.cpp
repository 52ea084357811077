#include "disk/raw_reader.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "disk/aligned_buffer.hpp"
#include "disk/file_set.hpp"
#include "disk/positioned_read.hpp"
#include "disk/uring_lane.hpp"
#include "disk/uring_mapping.hpp"
#include "disk/uring_queue.hpp"

namespace gramary {

namespace {

// Reads of one thread, `depth` of them in flight.
class RawRing {
 public:
    RawRing(int fd, unsigned depth, std::uint32_t block_bytes)
        : fd_(fd), depth_(depth), block_bytes_(block_bytes) {}

    // 0 or an errno.
    int open() {
        if (const int error = queue_.open(depth_, true)) return error;
        if (const int error = memory_.allocate(std::size_t{depth_} * block_bytes_)) return error;
        // Where these are refused the kernel looks files and pages up for each read.
        (void)queue_.register_files({&fd_, 1});
        (void)queue_.register_buffer(memory_);
        return 0;
    }

    // Reads until all have come, or after the first failure those under way; 0 or an errno.
    int read(std::span<const std::int64_t> offsets) {
        int error = 0;
        std::size_t next = 0;
        for (; next < std::min<std::size_t>(depth_, offsets.size()); ++next) {
            prepare(static_cast<unsigned>(next), offsets[next]);
        }
        std::size_t in_flight = next;
        while (in_flight > 0) {
            const int entered = queue_.enter(1);
            if (entered < 0 && entered != -EINTR) {
                // Reads may still be under way to this memory.
                memory_.leave();
                return -entered;
            }
            queue_.take([&](const uring_abi::CompletionEntry& entry) {
                --in_flight;
                if (entry.result < 0 && error == 0) error = -entry.result;
                if (error != 0 || next == offsets.size()) return;
                prepare(static_cast<unsigned>(entry.user_data), offsets[next++]);
                ++in_flight;
            });
        }
        return error;
    }

 private:
    void prepare(unsigned slot, std::int64_t offset) {
        queue_.prepare({fd_, 0, memory_.data() + std::size_t{slot} * block_bytes_, block_bytes_,
                        static_cast<std::uint64_t>(offset), slot});
    }

    // Destroyed after the queue, whose reads land in it.
    UringMapping memory_;
    UringQueue queue_;
    int fd_;
    unsigned depth_;
    std::uint32_t block_bytes_;
};

int read_by_ring(int fd, std::span<const std::int64_t> offsets, std::uint32_t block_bytes,
                 int depth) {
    RawRing ring(fd, static_cast<unsigned>(depth), block_bytes);
    const int error = ring.open();
    return error != 0 ? error : ring.read(offsets);
}

int read_one_by_one(int fd, std::span<const std::int64_t> offsets, std::uint32_t block_bytes) {
    AlignedBuffer memory;
    memory.reserve(block_bytes);
    for (const std::int64_t offset : offsets) {
        const PositionedRead result = read_fully(fd, memory.data(), block_bytes, offset);
        if (result.error != 0) return result.error;
    }
    return 0;
}

}  // namespace

QueueShape lane_shape() { return {UringLanes::num_lanes(), UringLanes::kDepth}; }

int read_blocks_raw(const std::string& path, std::span<const std::int64_t> offsets,
                    std::uint32_t block_bytes, const QueueShape& shape) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!file) return errno;
    std::atomic<int> error{0};
    std::vector<std::thread> threads;
    const std::size_t share = offsets.size() / static_cast<std::size_t>(shape.num_threads) + 1;
    for (std::size_t begin = 0; begin < offsets.size(); begin += share) {
        const auto part = offsets.subspan(begin, std::min(share, offsets.size() - begin));
        const auto read = [&, part] {
            const int code = shape.depth == 1
                                 ? read_one_by_one(file.get(), part, block_bytes)
                                 : read_by_ring(file.get(), part, block_bytes, shape.depth);
            if (code != 0) error = code;
        };
        try {
            threads.emplace_back(read);
        } catch (const std::system_error&) {
            read();
        }
    }
    for (auto& thread : threads) thread.join();
    return error;
}

int read_rows_raw(const std::string& path, std::span<const std::int64_t> offsets,
                  std::uint32_t row_bytes, std::uint8_t* out) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) return errno;
    (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
    for (const std::int64_t offset : offsets) {
        const PositionedRead result = read_fully(file.get(), out, row_bytes, offset);
        if (result.bytes < row_bytes) return result.error != 0 ? result.error : EIO;
        out += row_bytes;
    }
    return 0;
}

}  // namespace gramary
