#include "disk/raw_reader.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "disk/aligned_buffer.hpp"
#include "disk/file_set.hpp"
#include "disk/positioned_read.hpp"
#include "disk/uring_lane.hpp"

#ifdef GRAMARY_HAVE_LIBURING
#include <liburing.h>
#endif

namespace gramary {

#ifdef GRAMARY_HAVE_LIBURING
namespace {

class RawRing {
 public:
    RawRing(int fd, unsigned depth, std::uint32_t block_bytes)
        : depth_(depth), block_bytes_(block_bytes) {
        const unsigned flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
        error_ = -io_uring_queue_init(depth, &ring_, flags);
        if (error_ == EINVAL) error_ = -io_uring_queue_init(depth, &ring_, 0);
        if (error_ != 0) return;
        is_open_ = true;
        memory_.reserve(std::size_t{depth} * block_bytes);
        const iovec memory{memory_.data(), memory_.size()};
        error_ = -io_uring_register_files(&ring_, &fd, 1);
        // Locked memory may be short: then the kernel maps the pages for each read.
        has_fixed_buffer_ = error_ == 0 && io_uring_register_buffers(&ring_, &memory, 1) == 0;
    }
    ~RawRing() {
        if (is_open_) io_uring_queue_exit(&ring_);
    }
    RawRing(const RawRing&) = delete;
    RawRing& operator=(const RawRing&) = delete;

    int read(std::span<const std::int64_t> offsets) {
        if (error_ != 0) return error_;
        std::size_t next = 0;
        std::size_t num_done = 0;
        const std::size_t first = std::min<std::size_t>(depth_, offsets.size());
        for (; next < first; ++next) prepare(static_cast<unsigned>(next), offsets[next]);
        while (num_done < offsets.size()) {
            const int submitted = io_uring_submit_and_wait(&ring_, 1);
            if (submitted < 0 && submitted != -EINTR) return -submitted;
            unsigned head = 0;
            unsigned count = 0;
            io_uring_cqe* entry = nullptr;
            io_uring_for_each_cqe(&ring_, head, entry) {
                if (entry->res < 0) return -entry->res;
                ++count;
                const auto slot = static_cast<unsigned>(entry->user_data);
                if (next < offsets.size()) prepare(slot, offsets[next++]);
            }
            io_uring_cq_advance(&ring_, count);
            num_done += count;
        }
        return 0;
    }

 private:
    void prepare(unsigned slot, std::int64_t offset) {
        io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
        std::uint8_t* const memory = memory_.data() + std::size_t{slot} * block_bytes_;
        const auto place = static_cast<std::uint64_t>(offset);
        if (has_fixed_buffer_) {
            io_uring_prep_read_fixed(entry, 0, memory, block_bytes_, place, 0);
        } else {
            io_uring_prep_read(entry, 0, memory, block_bytes_, place);
        }
        entry->flags |= IOSQE_FIXED_FILE;
        io_uring_sqe_set_data64(entry, slot);
    }

    io_uring ring_{};
    AlignedBuffer memory_;
    unsigned depth_;
    std::uint32_t block_bytes_;
    bool has_fixed_buffer_ = false;
    bool is_open_ = false;
    int error_ = 0;
};

int read_by_ring(int fd, std::span<const std::int64_t> offsets, std::uint32_t block_bytes,
                 int depth) {
    return RawRing(fd, static_cast<unsigned>(depth), block_bytes).read(offsets);
}

}  // namespace

QueueShape lane_shape() { return {UringLanes::num_lanes(), UringLanes::kDepth}; }
#else
namespace {

int read_by_ring(int, std::span<const std::int64_t>, std::uint32_t, int) { return ENOSYS; }

}  // namespace

QueueShape lane_shape() { return {1, 1}; }
#endif

namespace {

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

int read_blocks_raw(const std::string& path, std::span<const std::int64_t> offsets,
                    std::uint32_t block_bytes, const QueueShape& shape) {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!file) return errno;
    std::atomic<int> error{0};
    std::vector<std::thread> threads;
    const std::size_t share = offsets.size() / static_cast<std::size_t>(shape.num_threads) + 1;
    for (std::size_t begin = 0; begin < offsets.size(); begin += share) {
        const auto part = offsets.subspan(begin, std::min(share, offsets.size() - begin));
        threads.emplace_back([&, part] {
            const int code = shape.depth == 1
                                 ? read_one_by_one(file.get(), part, block_bytes)
                                 : read_by_ring(file.get(), part, block_bytes, shape.depth);
            if (code != 0) error = code;
        });
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
