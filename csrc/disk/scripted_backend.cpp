#include "disk/scripted_backend.hpp"

#include <chrono>
#include <cstdint>
#include <thread>

namespace gramary {

void ScriptedBackend::run(ReadTask& task) {
    const std::int64_t batch = next_batch_.fetch_add(1);
    for (const ScriptedFault& fault : faults_) {
        if (fault.batch != batch) continue;
        std::this_thread::sleep_for(std::chrono::microseconds(fault.delay_us));
        if (fault.error < 0) continue;
        const std::uint64_t address = task.reads().front().address;
        task.fail({ReadFailure::Kind::read, address + static_cast<std::uint64_t>(fault.short_bytes),
                   static_cast<int>(fault.error)});
        return;
    }
    behind_->run(task);
}

}  // namespace gramary
