#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace gramary {

// The bare device, for benchmarks and diagnosis: no plan, no check, no scatter. Each function
// returns 0 or an errno.

// How deep the reader's own lanes read: threads, and reads in flight in each.
struct QueueShape {
    int num_threads;
    int depth;
};
QueueShape lane_shape();

// Reads `block_bytes` at each offset of a file with O_DIRECT, split evenly over the threads, and
// throws the bytes away: through io_uring with registered buffers and files, or by one pread after
// the other where the depth is 1. Where io_uring is refused, its errno for a deeper queue.
int read_blocks_raw(const std::string& path, std::span<const std::int64_t> offsets,
                    std::uint32_t block_bytes, const QueueShape& shape);

// One plain pread of `row_bytes` for each offset, into consecutive rows of `out`.
int read_rows_raw(const std::string& path, std::span<const std::int64_t> offsets,
                  std::uint32_t row_bytes, std::uint8_t* out);

}  // namespace gramary
