#include "offload/host_lane.hpp"

namespace gramary::offload {

bool HostLane::serve() {
    const std::uint64_t number = served_ + 1;
    Region& region = tenant_.region;
    if (load_acquire(region.header->host_number) < number) return false;
    Slot& slot = region.host_slot(number);
    if (!is_free(slot, number)) {
        if (waiting_since_ns_ == 0) waiting_since_ns_ = TraceLog::now_ns();
        return false;
    }
    if (waiting_since_ns_ != 0) scribe_.waited(number, waiting_since_ns_);
    waiting_since_ns_ = 0;
    answer(number, slot, region.input(number));
    store_release(slot.header->done, number);
    served_ = number;
    scribe_.count(Counter::host_requests, 1);
    return true;
}

bool HostLane::is_free(const Slot& slot, std::uint64_t number) const noexcept {
    const std::uint64_t num_slots = tenant_.region.host_slots.size();
    return number <= num_slots || load_acquire(slot.header->released) >= number - num_slots;
}

void HostLane::answer(std::uint64_t number, Slot& slot, const Input& input) {
    std::uint64_t& claim = input.header->claim;
    // Taken back: it was given up before it was begun, and somebody may be writing there.
    if (!swap_state(claim, state_of(number, Phase::requested), state_of(number, Phase::claimed))) {
        return;
    }
    const auto wrong = guarded([&] { return take_inputs(input); });
    store_release(claim, state_of(number, Phase::idle));
    slot.header->number = number;
    slot.header->num_tokens = inputs_.num_tokens();
    for (std::size_t table_index = 0; table_index < tenant_.stores.size(); ++table_index) {
        const LaneWork::Task task{slot, table_index, number, input.header->states[table_index]};
        if (!work_.is_wanted(task)) continue;
        if (wrong) {
            work_.refuse(task, *wrong);
        } else {
            answer_table(task);
        }
    }
}

std::optional<StoreFailure> HostLane::take_inputs(const Input& input) {
    if (inputs_.take(tenant_.region, input)) return std::nullopt;
    return StoreFailure{Failure::inputs};
}

void HostLane::answer_table(const LaneWork::Task& task) {
    const LayerStore& store = tenant_.stores[task.table_index];
    std::int64_t* const ids = task.slot.tables[task.table_index].ids;
    const std::int64_t begin_ns = TraceLog::now_ns();
    const auto failure =
        guarded([&] { return store.hash(inputs_.batch(store.history_length()), ids, pool_); });
    if (failure) {
        scribe_.gathered(store, task.number, begin_ns);
        work_.refuse(task, *failure);
        return;
    }
    work_.gather_and_answer(task, inputs_.num_tokens() * store.num_heads(), true, begin_ns);
}

}  // namespace gramary::offload
