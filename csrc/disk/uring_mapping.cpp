#include "disk/uring_mapping.hpp"

#include <unistd.h>

#include <cerrno>

namespace gramary {

UringMapping::~UringMapping() {
    if (data_ != nullptr && getpid() == owner_pid_) ::munmap(data_, num_bytes_);
}

int UringMapping::allocate(std::size_t num_bytes) {
    return take(
        ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
        num_bytes);
}

int UringMapping::map(int fd, std::int64_t place, std::size_t num_bytes) {
    return take(
        ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, place),
        num_bytes);
}

int UringMapping::take(void* mapped, std::size_t num_bytes) {
    if (mapped == MAP_FAILED) return errno;
    data_ = static_cast<std::uint8_t*>(mapped);
    num_bytes_ = num_bytes;
    owner_pid_ = getpid();
    return ::madvise(mapped, num_bytes, MADV_DONTFORK) == 0 ? 0 : errno;
}

}  // namespace gramary
