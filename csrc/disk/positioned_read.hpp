#pragma once
#include <cstdint>

namespace gramary {

// What a positioned read brought: `bytes` at the front of the buffer, and the errno that stopped
// it, or 0 when it is complete or met the end of the file.
struct PositionedRead {
    std::uint32_t bytes;
    int error;
};

// Reads until `length` bytes have come, the file ends, or an error; goes on after short reads and
// signals. A descriptor opened with O_DIRECT needs aligned arguments.
PositionedRead read_fully(int fd, std::uint8_t* buffer, std::uint32_t length, std::int64_t offset);

// Whether all `length` bytes could be read from the page cache. Never waits for storage; of what is
// missing a kernel may start a read (Linux does since 6.2) that a later call then finds.
bool read_cached(int fd, std::uint8_t* buffer, std::uint32_t length, std::int64_t offset);

}  // namespace gramary
