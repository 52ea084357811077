#pragma once
#include <memory>
#include <mutex>

#include "base/thread_pool.hpp"
#include "disk/read_backend.hpp"

namespace gramary {

// Positioned reads by a pool of threads that mostly sleep in the kernel: one read in flight for
// each. A handful of reads is done by the caller. Threads start with the first batch that needs
// them and end with the backend. A forked child has no threads: there the caller reads alone.
class PreadBackend final : public ReadBackend {
 public:
    explicit PreadBackend(int num_threads);
    ~PreadBackend() override;
    void run(ReadTask& task) override;
    const char* name() const noexcept override { return "pread"; }

 private:
    ThreadPool& pool();

    int num_threads_;
    int owner_pid_;
    std::once_flag started_;
    std::unique_ptr<ThreadPool> pool_;
};

}  // namespace gramary
