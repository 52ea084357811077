#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "disk/pread_backend.hpp"
#include "disk/read_backend.hpp"
#include "disk/uring_lane.hpp"
#include "disk/uring_refusal.hpp"
#include "disk/uring_ring.hpp"
#include "disk/uring_supply.hpp"

namespace gramary {

// Reads through io_uring, in two ways.
//
// Small tasks run on the calling thread with a ring that is lent for the call: one system call
// hands in all reads, what the page cache holds is answered inside it, the rest is in flight at
// once, and no other thread is woken. Large tasks go to a few lanes: threads with a ring of their
// own that read and scatter at the same time. Lanes start with the first large task. Where there is
// no ring to be had, for now or for good, reads go through pread, and `shortcoming` says why; in a
// forked child too, where rings and lanes belong to the parent.
class UringBackend final : public ReadBackend {
 public:
    // nullptr when the kernel refuses io_uring; `refusal` then says so. `num_pread_threads` is for
    // reads that find no ring.
    static std::unique_ptr<UringBackend> try_make(const FileSet& files, DiskStats& stats,
                                                  int num_pread_threads, UringRefusal& refusal);
    ~UringBackend() override;
    void run(ReadTask& task) override;
    // "pread" once there is no io_uring any more.
    const char* name() const noexcept override { return is_usable() ? "io_uring" : "pread"; }
    std::int64_t whole_batches_below() const noexcept override;
    std::string shortcoming() const override;

 private:
    UringBackend(const FileSet& files, DiskStats& stats, int num_pread_threads);
    bool is_forked() const noexcept;
    bool is_usable() const noexcept { return !is_forked() && !supply_.is_lost(); }
    std::unique_ptr<UringRing> borrow();
    void give_back(std::unique_ptr<UringRing> ring);
    void run_here(ReadTask& task);
    UringLanes& lanes();

    const FileSet& files_;
    UringSupply supply_;
    PreadBackend pread_;
    int owner_pid_;
    std::string shortcoming_;
    std::mutex idle_mutex_;
    std::vector<std::unique_ptr<UringRing>> idle_;
    std::once_flag lanes_started_;
    std::unique_ptr<UringLanes> lanes_;
};

}  // namespace gramary
