#include "offload/stream_lane.hpp"

#include <algorithm>
#include <span>

namespace gramary::offload {

bool StreamLane::serve() {
    bool worked = false;
    for (Slot& slot : tenant_.region.stream_slots) {
        const std::uint64_t number = load_acquire(slot.header->number);
        if (number == slot.header->done) continue;
        answer(slot, number);
        worked = true;
    }
    return worked;
}

void StreamLane::answer(Slot& slot, std::uint64_t number) {
    const std::int64_t num_tokens =
        std::clamp<std::int64_t>(slot.header->num_tokens, 0, tenant_.region.max_tokens);
    for (std::size_t layer = 0; layer < tenant_.stores.size(); ++layer) {
        const LayerStore& store = tenant_.stores[layer];
        const std::int64_t begin_ns = TraceLog::now_ns();
        // A requester whose earlier request was given up may write anew meanwhile.
        const std::span<const std::int64_t> ids(
            slot.layers[layer].ids, static_cast<std::size_t>(num_tokens * store.num_heads()));
        const auto failure = store.gather_written(ids, slot.layers[layer].rows, pool_, scratch_);
        scribe_.gathered(store, number, static_cast<std::int64_t>(ids.size()), begin_ns);
        scribe_.publish(slot, layer, number, slot.header->states[layer], failure);
    }
    store_release(slot.header->done, number);
    scribe_.count(Counter::stream_requests, 1);
}

}  // namespace gramary::offload
