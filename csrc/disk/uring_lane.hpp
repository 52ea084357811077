#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "disk/uring_ring.hpp"
#include "disk/uring_supply.hpp"

namespace gramary {

// Threads that each own a ring and share the reads of large tasks, in slices, so that several
// tasks advance side by side. `run` returns when all reads of its task are answered. The destructor
// joins the threads; a forked child, which has none, must neither run nor destroy them.
class UringLanes {
 public:
    UringLanes(const FileSet& files, UringSupply& supply);
    ~UringLanes();
    UringLanes(const UringLanes&) = delete;
    UringLanes& operator=(const UringLanes&) = delete;

    // Reads in flight in one lane.
    static constexpr int kDepth = 64;
    // One lane for two CPUs, at most eight; two where there are two CPUs. Reads from a fast device
    // keep a CPU busy at some 250,000 a second, and where a device interrupts but one CPU, lanes on
    // that one are fastest: slices go to whoever is ready for them.
    static int num_lanes();
    // Whether a thread got its ring.
    bool is_running() const noexcept { return num_running_ > 0; }
    // No read of the task may be longer than this.
    static constexpr std::uint32_t kLongestRead = 8192;
    void run(ReadTask& task);

 private:
    struct Job;
    class LaneSource;
    void serve();
    bool take_slice(Job*& job, std::size_t& begin, std::size_t& end);
    void count_answered(Job& job, std::size_t count);
    void count_skipped(Job& job, std::size_t count);  // with mutex_ held

    const FileSet& files_;
    UringSupply& supply_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    std::deque<Job*> jobs_;  // with slices left to take
    bool is_stopping_ = false;
    int num_starting_ = 0;
    int num_running_ = 0;
    std::vector<std::thread> threads_;
};

}  // namespace gramary
