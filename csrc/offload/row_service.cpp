#include "offload/row_service.hpp"

#include <unistd.h>

namespace gramary::offload {
namespace {

using Clock = std::chrono::steady_clock;

// Time between two looks at the parent.
constexpr auto kLookEvery = std::chrono::milliseconds(200);

}  // namespace

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
    for (std::thread* thread : {&streams_, &runner_}) {
        if (thread->joinable()) thread->detach();
    }
    static_cast<void>(pool_.release());
}

void RowService::start() {
    start_streams();
    try {
        runner_ = std::thread([this] { serve(host_lanes_, kHostSpin, 0); });
    } catch (...) {
        is_ending_ = true;
        streams_.join();
        throw;
    }
    for (Tenant& tenant : tenants_) tenant.say_running();
}

void RowService::stop() {
    // Once stopped, the regions may be gone; in a forked child they are the parent's.
    if (!runner_.joinable() || getpid() != owner_pid_) return;
    for (Tenant& tenant : tenants_) tenant.ask_to_stop();
    runner_.join();
    streams_.join();
    pool_->stop();
}

void RowService::run(int parent_pid) {
    start_streams();
    for (Tenant& tenant : tenants_) tenant.say_running();
    serve(host_lanes_, kHostSpin, parent_pid);
    streams_.join();
}

void RowService::start_streams() {
    streams_ = std::thread([this] { serve(stream_lanes_, Waiter::kSpin, 0); });
}

template <class Lane>
void RowService::serve(std::list<Lane>& lanes, std::chrono::microseconds spin, int parent_pid) {
    Waiter::sleep_precisely();
    Waiter waiter(options_.poll, spin);
    Clock::time_point looked = Clock::now();
    while (!lanes.empty() && !is_ending_) {
        if (parent_pid != 0 && Clock::now() - looked > kLookEvery) {
            is_ending_ = getppid() != parent_pid;
            looked = Clock::now();
        }
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
    for (Lane& lane : lanes) lane.tenant().leave();
    lanes.clear();
}

}  // namespace gramary::offload
