#pragma once
#include <unistd.h>

#include <atomic>
#include <vector>

#include "offload/layer_store.hpp"
#include "offload/region.hpp"

namespace gramary::offload {

// One engine that a service serves: its region, and its layers' rows.
//
// Both lanes look at it until its stop word is set; whoever leaves last says that it was stopped,
// and from then on its memory may be gone.
struct Tenant {
    Region region;
    std::vector<LayerStore> stores;
    std::atomic<int> num_lanes{2};

    Tenant(Region its_region, std::vector<LayerStore> its_stores)
        : region(std::move(its_region)), stores(std::move(its_stores)) {}

    bool is_stopping() const noexcept { return load_acquire(region.header->stop) != 0; }
    // Called once its lanes are served; one that has left by then stays stopped.
    void say_running() noexcept {
        region.header->service_pid = static_cast<std::uint32_t>(getpid());
        auto expected = static_cast<std::uint32_t>(ServiceState::starting);
        std::atomic_ref<std::uint32_t>(region.header->service_state)
            .compare_exchange_strong(expected, static_cast<std::uint32_t>(ServiceState::running),
                                     std::memory_order_release, std::memory_order_relaxed);
    }
    // Of a tenant that was left already, the memory may be gone.
    void ask_to_stop() noexcept {
        if (num_lanes.load() > 0) store_release(region.header->stop, std::uint32_t{1});
    }
    void leave() noexcept {
        if (num_lanes.fetch_sub(1) != 1) return;
        store_release(region.header->service_state,
                      static_cast<std::uint32_t>(ServiceState::stopped));
    }
};

}  // namespace gramary::offload
