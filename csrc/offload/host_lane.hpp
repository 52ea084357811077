#pragma once
#include <cstdint>

#include "base/pool.hpp"
#include "offload/input_copy.hpp"
#include "offload/lane_work.hpp"
#include "offload/scribe.hpp"
#include "offload/tenant.hpp"

namespace gramary::offload {

// Answers one tenant's host-lane requests in their order; used by one thread.
class HostLane {
 public:
    HostLane(Tenant& tenant, Pool& pool, const Scribe& scribe)
        : tenant_(tenant), pool_(pool), scribe_(scribe), work_(tenant, pool, scribe_) {}
    HostLane(const HostLane&) = delete;
    HostLane& operator=(const HostLane&) = delete;

    Tenant& tenant() noexcept { return tenant_; }
    // Answers the next request, if it is there and its slot is free; false otherwise.
    bool serve();

 private:
    bool is_free(const Slot& slot, std::uint64_t number) const noexcept;
    void answer(std::uint64_t number, Slot& slot, const Input& input);
    // Takes a copy of the inputs; what is wrong with them, if anything is.
    std::optional<StoreFailure> take_inputs(const Input& input);
    void answer_table(const LaneWork::Task& task);

    Tenant& tenant_;
    Pool& pool_;
    Scribe scribe_;
    LaneWork work_;
    InputCopy inputs_;
    std::uint64_t served_ = 0;
    std::int64_t waiting_since_ns_ = 0;
};

}  // namespace gramary::offload
