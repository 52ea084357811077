#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>

#include "offload/layer_store.hpp"
#include "offload/tenant.hpp"

namespace gramary::offload {

// What a test tells the service to suffer: random delays, failures, answers held back.
//
// Empty, it costs one relaxed load a table of a request.
class ServiceScript {
 public:
    struct Rules {
        std::int64_t min_delay_us = 0;
        std::int64_t max_delay_us = 0;
        std::int64_t fail_every = 0;  // the n-th, 2n-th, ... table answered fails; 0: none
        std::uint64_t seed = 0;
    };

    void set(const Rules& rules);
    // Held, the service keeps every answer back until it is let go or its tenant is to leave.
    void hold(bool held) noexcept { held_.store(held); }

    // Called before a table's answer; sleeps, waits, and may give a failure.
    std::optional<StoreFailure> suffer(const Tenant& tenant);

 private:
    std::atomic<bool> active_{false};
    std::atomic<bool> held_{false};
    std::mutex mutex_;
    Rules rules_;
    std::int64_t answered_ = 0;
    std::mt19937_64 random_;
};

}  // namespace gramary::offload
