#pragma once
#include <cstdint>
#include <vector>

#include "base/pool.hpp"
#include "offload/lane_work.hpp"
#include "offload/scribe.hpp"
#include "offload/tenant.hpp"

namespace gramary::offload {

// Answers one tenant's stream slots; used by one thread.
//
// A slot's number is its doorbell: one that was not answered yet is a request. Nothing else of a
// slot is looked at while it is idle.
class StreamLane {
 public:
    StreamLane(Tenant& tenant, Pool& pool, const Scribe& scribe)
        : tenant_(tenant),
          scribe_(scribe),
          work_(tenant, pool, scribe_),
          answered_(tenant.region.stream_slots.size(), 0) {}
    StreamLane(const StreamLane&) = delete;
    StreamLane& operator=(const StreamLane&) = delete;

    Tenant& tenant() noexcept { return tenant_; }
    // Answers what was asked for; false when there is nothing.
    bool serve();

 private:
    void answer(Slot& slot, std::uint64_t number);

    Tenant& tenant_;
    Scribe scribe_;
    LaneWork work_;
    std::vector<std::uint64_t> answered_;  // the newest request of each slot
};

}  // namespace gramary::offload
