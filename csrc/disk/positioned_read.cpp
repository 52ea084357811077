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

CacheAnswer read_cached(int fd, std::uint8_t* buffer, std::uint32_t length, std::int64_t offset) {
    // RWF_NOWAIT also keeps the kernel from starting reads of its own (IOCB_NOIO).
    iovec piece{buffer, length};
    const ssize_t got = ::preadv2(fd, &piece, 1, offset, RWF_NOWAIT);
    if (got == static_cast<ssize_t>(length)) return CacheAnswer::hit;
    if (got < 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)) {
        return CacheAnswer::unsupported;
    }
    return CacheAnswer::miss;
}

}  // namespace gramary
