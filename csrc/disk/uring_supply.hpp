#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "disk/uring_refusal.hpp"
#include "disk/uring_ring.hpp"

namespace gramary {

// Makes a reader's rings for as long as the kernel grants them. A kernel may take back what it
// granted: a process can forbid itself the system calls with files open already. Then, or when too
// many rings broke, io_uring is lost for this reader; a limit that is met (descriptors, locked
// memory) is no such loss, for the next ring may be had again. Any thread.
class UringSupply {
 public:
    UringSupply(const FileSet& files, DiskStats& stats) : files_(files), stats_(stats) {}

    // nullptr when the kernel refuses; never again once io_uring is lost.
    std::unique_ptr<UringRing> try_make(const UringRing::Options& options);
    // Tells of a ring that broke.
    void note_broken(const UringRing& ring);
    bool is_lost() const noexcept { return is_lost_.load(std::memory_order_relaxed); }
    // The latest refusal, or none.
    UringRefusal refusal() const;

 private:
    void note(const UringRefusal& refusal, bool is_lost);

    const FileSet& files_;
    DiskStats& stats_;
    mutable std::mutex mutex_;
    UringRefusal refusal_;
    int num_broken_ = 0;
    std::atomic<bool> is_lost_{false};
};

}  // namespace gramary
