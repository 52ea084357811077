#pragma once
#include <cstdint>

#include "base/pool.hpp"
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
        : tenant_(tenant), pool_(pool), scribe_(scribe) {}

    Tenant& tenant() noexcept { return tenant_; }
    // Answers what was asked for; false when there is nothing.
    bool serve();

 private:
    void answer(Slot& slot, std::uint64_t number);

    Tenant& tenant_;
    Pool& pool_;
    Scribe scribe_;
    GatherScratch scratch_;
};

}  // namespace gramary::offload
