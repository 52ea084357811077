#pragma once
#include <cstddef>
#include <memory>

namespace gramary {

// A range of addresses with memory mapped to it, unmapped once the last holder has let go.
//
// Whoever reads or writes the memory without the interpreter lock is a holder, or is waited for by
// one.
class Mapping {
 public:
    // Takes over a range that mmap gave.
    Mapping(void* data, std::size_t num_bytes) noexcept : data_(data), num_bytes_(num_bytes) {}
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    char* data() const noexcept { return static_cast<char*>(data_); }

    // From now on nothing is unmapped. For the end of the interpreter: it does not wait for daemon
    // threads, which may be reading, and the kernel takes the memory when the process has ended.
    static void keep_all() noexcept;

 private:
    void* data_;
    std::size_t num_bytes_;
};

// Keeps what a thread of the core reads, whatever becomes of its owners; empty once they let go.
struct Hold {
    std::shared_ptr<const void> what;
};

}  // namespace gramary
