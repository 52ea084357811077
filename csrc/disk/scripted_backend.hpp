#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "disk/read_backend.hpp"

namespace gramary {

// What happens to one batch, counted from 0 when the script was set: first a delay, then a failure
// of its first read unless `error` is negative (0: the file ends `short_bytes` into that read).
struct ScriptedFault {
    std::int64_t batch;
    std::int64_t delay_us;
    std::int64_t error;
    std::int64_t short_bytes;
};

// Lets batches fail or take their time on purpose, for tests of whatever reads rows; batches
// without a fault go to the backend behind it. Every batch comes here whole.
class ScriptedBackend final : public ReadBackend {
 public:
    ScriptedBackend(std::unique_ptr<ReadBackend> behind, std::vector<ScriptedFault> faults)
        : behind_(std::move(behind)), faults_(std::move(faults)) {}
    void run(ReadTask& task) override;
    const char* name() const noexcept override { return "scripted"; }
    std::int64_t whole_batches_below() const noexcept override { return INT64_MAX; }
    std::string shortcoming() const override { return behind_->shortcoming(); }

 private:
    std::unique_ptr<ReadBackend> behind_;
    std::vector<ScriptedFault> faults_;
    std::atomic<std::int64_t> next_batch_{0};
};

}  // namespace gramary
