#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/pool.hpp"
#include "offload/scribe.hpp"
#include "offload/tenant.hpp"

namespace gramary::offload {

// Answers one tenant's host-lane requests in their order; used by one thread.
class HostLane {
 public:
    HostLane(Tenant& tenant, Pool& pool, const Scribe& scribe)
        : tenant_(tenant), pool_(pool), scribe_(scribe) {}

    Tenant& tenant() noexcept { return tenant_; }
    // Answers the next request, if it is there and its slot is free; false otherwise.
    bool serve();

 private:
    bool is_free(const Slot& slot, std::uint64_t number) const noexcept;
    void answer(std::uint64_t number, Slot& slot, const Input& input);
    // A batch as one layer hashes it: the inputs carry the widest layer's history, whose newest
    // columns are this one's.
    FlatBatch batch_for(const LayerStore& store, const Input& input);
    std::optional<StoreFailure> gather(const Slot& slot, std::size_t layer, std::uint64_t number,
                                       std::span<const std::int64_t> ids);

    Tenant& tenant_;
    Pool& pool_;
    Scribe scribe_;
    std::uint64_t served_ = 0;
    std::int64_t waiting_since_ns_ = 0;
    std::vector<std::int64_t> history_;
    GatherScratch scratch_;
};

}  // namespace gramary::offload
