#include "offload/row_service.hpp"

#include <unistd.h>

#include <exception>
#include <future>
#include <iterator>
#include <stdexcept>

namespace gramary::offload {

RowService::RowService(std::list<Tenant> tenants, const ServiceOptions& options)
    : tenants_(std::move(tenants)),
      options_(options),
      pool_(std::make_unique<HotPool>(options.num_threads, options.poll == Waiter::Kind::sleep
                                                               ? std::chrono::microseconds(0)
                                                               : Waiter::kSpin)),
      owner_pid_(getpid()) {
    for (Tenant& tenant : tenants_) {
        stream_lanes_.emplace_back(tenant, pool_->express(), Scribe(tenant, true, script_, trace_));
        host_lanes_.emplace_back(tenant, pool_->regular(), Scribe(tenant, false, script_, trace_));
    }
}

RowService::~RowService() {
    if (getpid() == owner_pid_) {
        stop();
        return;
    }
    // Joining waits for ever for threads that are not here, and so does destroying what they wait
    // for.
    for (std::thread* thread : {&streams_, &hosts_}) {
        if (thread->joinable()) thread->detach();
    }
    static_cast<void>(pool_.release());
}

void RowService::start() {
    try {
        start_lanes();
    } catch (const std::exception&) {
        // The pool has the threads that the lanes need: without it they copy rows by themselves.
        pool_->stop();
        start_lanes();
    }
    for (Tenant& tenant : tenants_) tenant.say_running();
}

void RowService::start_lanes() {
    std::promise<bool> answer;
    const std::shared_future<bool> may_serve = answer.get_future().share();
    streams_ = std::thread([this, may_serve] {
        if (may_serve.get()) serve(stream_lanes_, Waiter::kSpin);
    });
    try {
        hosts_ = std::thread([this, may_serve] {
            if (may_serve.get()) serve(host_lanes_, kHostSpin);
        });
    } catch (...) {
        answer.set_value(false);
        streams_.join();
        throw;
    }
    answer.set_value(true);
}

void RowService::stop() {
    // In a forked child there are no threads to wait for, and the lock may be held for ever.
    if (getpid() != owner_pid_) return;
    std::lock_guard turn(stopping_);
    // Once stopped, or never started, the regions may be gone.
    if (hosts_.joinable()) {
        for (Tenant& tenant : tenants_) tenant.ask_to_leave();
        hosts_.join();
        streams_.join();
    }
    pool_->stop();
}

Tenant& RowService::tenant_at(std::size_t index) {
    if (index >= tenants_.size()) throw std::out_of_range("tenant");
    return *std::next(tenants_.begin(), static_cast<std::ptrdiff_t>(index));
}

void RowService::forget(std::size_t tenant) {
    if (!has_left(tenant)) throw std::logic_error("a tenant that is served is not forgotten");
    tenant_at(tenant).forget();
}

template <class Lane>
void RowService::serve(std::list<Lane>& lanes, std::chrono::microseconds spin) {
    Waiter::sleep_precisely();
    Waiter waiter(options_.poll, spin);
    while (!lanes.empty()) {
        bool worked = false;
        for (auto lane = lanes.begin(); lane != lanes.end();) {
            if (lane->tenant().is_stopping()) {
                lane->tenant().leave();
                lane = lanes.erase(lane);
            } else {
                worked |= (lane++)->serve();
            }
        }
        if (worked) {
            waiter.worked();
        } else {
            waiter.idle();
        }
    }
}

}  // namespace gramary::offload
