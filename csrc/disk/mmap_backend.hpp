#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "disk/read_backend.hpp"

namespace gramary {

// Copies rows out of shared read-only mappings; only when asked for.
//
// A file that shrinks while it is read this way ends the process with SIGBUS: the size is checked
// before each task, which leaves a gap that only the other backends close. Pages that were touched
// are counted (a fault maps up to 16 of them) and given back before the count passes the budget,
// so the mappings' resident size stays near it, by at most one piece of work a thread.
class MmapBackend final : public ReadBackend {
 public:
    // Throws FileSet::OpenFailure when a file cannot be mapped.
    MmapBackend(const FileSet& files, std::int64_t budget_bytes);
    ~MmapBackend() override;
    void run(ReadTask& task) override;
    const char* name() const noexcept override { return "mmap"; }
    std::int64_t whole_batches_below() const noexcept override { return INT64_MAX; }

 private:
    struct Mapping {
        std::uint8_t* data = nullptr;
        std::size_t bytes = 0;
    };
    bool check_sizes(ReadTask& task) const;
    void make_room(std::int64_t bytes);
    void unmap() noexcept;

    const FileSet& files_;
    std::int64_t budget_bytes_;
    std::vector<Mapping> mappings_;
    std::atomic<std::int64_t> touched_bytes_{0};
};

}  // namespace gramary
