#pragma once
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "offload/host_lane.hpp"
#include "offload/hot_pool.hpp"
#include "offload/service_script.hpp"
#include "offload/stream_lane.hpp"
#include "offload/tenant.hpp"
#include "offload/trace_log.hpp"
#include "offload/waiter.hpp"

namespace gramary::offload {

struct ServiceOptions {
    Waiter::Kind poll = Waiter::Kind::adaptive;
    int num_threads = 1;  // that may work on one gather
};

// Serves the requests of one region or several.
//
// Each lane has a thread, so that neither waits for the other, and both share one pool, whose
// workers leave a host-lane gather for a stream's. Nothing on the path of a request touches Python
// or CUDA. Life: construct, then start() and stop(). What a tenant's threads read is held until the
// service is gone, or the tenant has left and is forgotten; the service ends with its last tenant.
// A forked child has no threads of it and leaves it alone.
class RowService {
 public:
    RowService(std::list<Tenant> tenants, const ServiceOptions& options);
    ~RowService();

    // Does with two threads where the machine starts no more. Throws std::system_error, with
    // nothing left running and nobody told that they are served, where it does not start those.
    void start();
    // Asks every tenant's lanes to end and waits until they have; requests in flight stay
    // unanswered. From any thread.
    void stop();

    // One tenant, by its number in the constructor's list; of a service that was started. Asked to
    // leave, it has left a moment later: nothing of its memory is touched then, and it may be
    // forgotten.
    void ask_to_leave(std::size_t tenant) { tenant_at(tenant).ask_to_leave(); }
    bool has_left(std::size_t tenant) { return tenant_at(tenant).has_left(); }
    void forget(std::size_t tenant);

    ServiceScript& script() noexcept { return script_; }
    TraceLog& trace() noexcept { return trace_; }

 private:
    // How long the host lane's thread spins: its requests come a forward ahead.
    static constexpr std::chrono::microseconds kHostSpin{200};

    Tenant& tenant_at(std::size_t index);
    void start_lanes();
    template <class Lane>
    void serve(std::list<Lane>& lanes, std::chrono::microseconds spin);

    std::list<Tenant> tenants_;
    ServiceOptions options_;
    std::unique_ptr<HotPool> pool_;
    ServiceScript script_;
    TraceLog trace_;
    std::list<StreamLane> stream_lanes_;
    std::list<HostLane> host_lanes_;
    std::mutex stopping_;
    std::thread streams_;
    std::thread hosts_;
    int owner_pid_;
};

}  // namespace gramary::offload
