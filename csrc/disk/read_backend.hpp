#pragma once
#include "disk/read_task.hpp"

namespace gramary {

// Reads what is not in the page cache. `run` answers every read of a task and returns when all
// are; any number of threads may call it at once. Destroyed only when no call is running.
class ReadBackend {
 public:
    virtual ~ReadBackend() = default;
    virtual void run(ReadTask& task) = 0;
    virtual const char* name() const noexcept = 0;
};

}  // namespace gramary
