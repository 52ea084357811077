#pragma once
#include <sys/mman.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace gramary {

// Memory that the kernel reads or writes for a ring. It is this process's alone: a forked child has
// no mapping there, so that it neither sees pages that are written to for its parent nor keeps them
// from being written in place, and what it may have mapped at the same address since is left alone.
class UringMapping {
 public:
    UringMapping() = default;
    ~UringMapping();
    UringMapping(const UringMapping&) = delete;
    UringMapping& operator=(const UringMapping&) = delete;

    // Plain memory of zeros; 0 or an errno. At most once.
    int allocate(std::size_t num_bytes);
    // Leaves the memory mapped when this ends.
    void leave() noexcept { owner_pid_ = -1; }
    // A queue of the ring `fd`; 0 or an errno. At most once.
    int map(int fd, std::int64_t place, std::size_t num_bytes);

    std::uint8_t* data() const noexcept { return data_; }
    std::size_t num_bytes() const noexcept { return num_bytes_; }

 private:
    int take(void* mapped, std::size_t num_bytes);

    std::uint8_t* data_ = nullptr;
    std::size_t num_bytes_ = 0;
    pid_t owner_pid_ = 0;
};

}  // namespace gramary
