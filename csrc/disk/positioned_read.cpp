#include "disk/positioned_read.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace gramary {

PositionedRead read_fully(int fd, std::uint8_t* buffer, std::uint32_t length, std::int64_t offset) {
    std::uint32_t done = 0;
    while (done < length) {
        const ssize_t got = ::pread(fd, buffer + done, length - done, offset + done);
        if (got > 0) {
            done += static_cast<std::uint32_t>(got);
        } else if (got == 0) {
            return {done, 0};
        } else if (errno != EINTR) {
            return {done, errno};
        }
    }
    return {done, 0};
}

bool read_cached(int fd, std::uint8_t* buffer, std::uint32_t length, std::int64_t offset) {
    iovec piece{buffer, length};
    return ::preadv2(fd, &piece, 1, offset, RWF_NOWAIT) == static_cast<ssize_t>(length);
}

}  // namespace gramary
