#include "offload/stream_lane.hpp"

#include <algorithm>

namespace gramary::offload {

bool StreamLane::serve() {
    bool worked = false;
    for (std::size_t i = 0; i < answered_.size(); ++i) {
        Slot& slot = tenant_.region.stream_slots[i];
        const std::uint64_t number = load_acquire(slot.header->number);
        if (number == answered_[i]) continue;
        answer(slot, number);
        answered_[i] = number;
        worked = true;
    }
    return worked;
}

void StreamLane::answer(Slot& slot, std::uint64_t number) {
    const std::int64_t written = load_acquire(slot.header->num_tokens);
    const std::int64_t num_tokens = std::clamp<std::int64_t>(written, 0, tenant_.region.max_tokens);
    for (std::size_t table_index = 0; table_index < tenant_.stores.size(); ++table_index) {
        const LaneWork::Task task{slot, table_index, number, slot.header->states[table_index]};
        const std::int64_t count = num_tokens * tenant_.stores[table_index].num_heads();
        // A requester whose earlier request was given up may write anew meanwhile.
        work_.gather_and_answer(task, count, false, TraceLog::now_ns());
    }
    store_release(slot.header->done, number);
    scribe_.count(Counter::stream_requests, 1);
}

}  // namespace gramary::offload
