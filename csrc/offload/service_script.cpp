#include "offload/service_script.hpp"

#include <cerrno>
#include <chrono>
#include <thread>

namespace gramary::offload {

void ServiceScript::set(const Rules& rules) {
    std::lock_guard lock(mutex_);
    rules_ = rules;
    answered_ = 0;
    random_.seed(rules.seed);
    active_.store(rules.max_delay_us > 0 || rules.fail_every > 0);
}

std::optional<StoreFailure> ServiceScript::suffer(const Tenant& tenant) {
    while (held_.load() && !tenant.is_stopping()) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!active_.load(std::memory_order_relaxed)) return std::nullopt;
    std::int64_t delay_us;
    bool fails;
    {
        std::lock_guard lock(mutex_);
        std::uniform_int_distribution<std::int64_t> delays(rules_.min_delay_us,
                                                           rules_.max_delay_us);
        delay_us = delays(random_);
        fails = rules_.fail_every > 0 && ++answered_ % rules_.fail_every == 0;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    if (fails) return StoreFailure{Failure::read, EIO, 0, 0};
    return std::nullopt;
}

}  // namespace gramary::offload
