#pragma once
#ifdef GRAMARY_HAVE_LIBURING
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "disk/read_backend.hpp"
#include "disk/uring_lane.hpp"
#include "disk/uring_ring.hpp"

namespace gramary {

// Reads through io_uring, in two ways.
//
// Small tasks run on the calling thread with a ring that is lent for the call: one system call
// hands in all reads, what the page cache holds is answered inside it, the rest is in flight at
// once, and no other thread is woken. Large tasks go to a few lanes: threads with a ring of their
// own that read and scatter at the same time. Lanes start with the first large task. In a forked
// child, where rings and lanes belong to the parent, reads go through pread.
class UringBackend final : public ReadBackend {
 public:
    // nullptr when the kernel refuses io_uring; `why` then says so.
    static std::unique_ptr<UringBackend> try_make(const FileSet& files, DiskStats& stats,
                                                  std::string& why);
    ~UringBackend() override;
    void run(ReadTask& task) override;
    const char* name() const noexcept override { return "io_uring"; }
    std::int64_t whole_batches_below() const noexcept override;
    std::string shortcoming() const override { return shortcoming_; }

 private:
    UringBackend(const FileSet& files, DiskStats& stats);
    std::unique_ptr<UringRing> borrow();
    void give_back(std::unique_ptr<UringRing> ring);
    void run_here(ReadTask& task);
    UringLanes& lanes();

    const FileSet& files_;
    DiskStats& stats_;
    int owner_pid_;
    std::string shortcoming_;
    std::mutex idle_mutex_;
    std::vector<std::unique_ptr<UringRing>> idle_;
    std::once_flag lanes_started_;
    std::unique_ptr<UringLanes> lanes_;
};

}  // namespace gramary
#endif
