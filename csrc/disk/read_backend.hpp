#pragma once
#include <cstddef>
#include <string>

#include "disk/read_task.hpp"

namespace gramary {

// Reads what is not in the page cache. `run` answers every read of a task and returns when all
// are; any number of threads may call it at once. Destroyed only when no call is running.
class ReadBackend {
 public:
    virtual ~ReadBackend() = default;
    virtual void run(ReadTask& task) = 0;
    virtual const char* name() const noexcept = 0;
    // Batches of fewer blocks come here whole, the cached ones among them.
    virtual std::int64_t whole_batches_below() const noexcept { return 0; }
    // What the machine does not grant, in words, or empty. Any thread, while reads are running too.
    virtual std::string shortcoming() const { return {}; }
};

}  // namespace gramary
