#pragma once
#include <unistd.h>

#include <atomic>
#include <utility>
#include <vector>

#include "memory/mapping.hpp"
#include "offload/layer_store.hpp"
#include "offload/region.hpp"

namespace gramary::offload {

// One engine that a service serves: its region, and its tables' rows.
//
// Both lanes look at it until it is asked to leave, by the service's owner or by the region's stop
// word. The lane that leaves last says so in the region; then the tenant has left, and nothing of
// its memory is touched any more. Whether it has is remembered here: a region's words are
// anybody's.
struct Tenant {
    Region region;
    std::vector<LayerStore> stores;

    // holds: what the region, the extents and the readers lie in.
    Tenant(Region its_region, std::vector<LayerStore> its_stores, std::vector<Hold> its_holds)
        : region(std::move(its_region)),
          stores(std::move(its_stores)),
          holds_(std::move(its_holds)) {}

    bool is_stopping() const noexcept {
        return is_asked_to_leave_.load(std::memory_order_relaxed) ||
               load_acquire(region.header->stop) != 0;
    }
    void ask_to_leave() noexcept { is_asked_to_leave_ = true; }
    bool has_left() const noexcept { return has_left_; }
    // Lets go of the memory of a tenant that has left.
    void forget() noexcept { holds_.clear(); }

    // Called once its lanes are served; one that has left by then stays stopped.
    void say_running() noexcept {
        if (has_left_) return;
        region.header->service_pid = static_cast<std::uint32_t>(getpid());
        auto expected = static_cast<std::uint32_t>(ServiceState::starting);
        std::atomic_ref<std::uint32_t>(region.header->service_state)
            .compare_exchange_strong(expected, static_cast<std::uint32_t>(ServiceState::running),
                                     std::memory_order_release, std::memory_order_relaxed);
    }
    // Called by each lane, which then looks at nothing here any more.
    void leave() noexcept {
        if (num_lanes_.fetch_sub(1) != 1) return;
        store_release(region.header->service_state,
                      static_cast<std::uint32_t>(ServiceState::stopped));
        has_left_ = true;
    }

 private:
    std::vector<Hold> holds_;
    std::atomic<int> num_lanes_{2};
    std::atomic<bool> is_asked_to_leave_{false};
    std::atomic<bool> has_left_{false};
};

}  // namespace gramary::offload
