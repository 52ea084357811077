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
    InputHeader& header = *input.header;
    slot.header->number = number;
    slot.header->num_tokens = header.num_tokens;
    for (std::size_t layer = 0; layer < tenant_.stores.size(); ++layer) {
        // Given up before it was begun: there is nothing to answer.
        if (load_acquire(header.states[layer]) != state_of(number, Phase::requested)) continue;
        const LayerStore& store = tenant_.stores[layer];
        std::int64_t* const ids = slot.layers[layer].ids;
        const auto count = static_cast<std::size_t>(header.num_tokens * store.num_heads());
        const std::int64_t begin_ns = TraceLog::now_ns();
        std::optional<StoreFailure> failure = store.hash(batch_for(store, input), ids, pool_);
        if (!failure) failure = gather(slot, layer, number, {ids, count});
        scribe_.gathered(store, number, static_cast<std::int64_t>(count), begin_ns);
        scribe_.publish(slot, layer, number, header.states[layer], failure);
    }
}

FlatBatch HostLane::batch_for(const LayerStore& store, const Input& input) {
    const InputHeader& header = *input.header;
    FlatBatch batch{{input.tokens, true},
                    header.num_tokens,
                    input.starts,
                    header.num_requests,
                    {nullptr, true}};
    const std::int64_t widest = tenant_.region.history_length, width = store.history_length();
    if (!header.has_history) return batch;
    batch.history.data = input.history;
    if (width == widest) return batch;
    history_.clear();
    for (std::int64_t r = 1; r <= header.num_requests; ++r) {
        const std::int64_t* end = input.history + r * widest;
        history_.insert(history_.end(), end - width, end);
    }
    batch.history.data = history_.data();
    return batch;
}

std::optional<StoreFailure> HostLane::gather(const Slot& slot, std::size_t layer,
                                             std::uint64_t number,
                                             std::span<const std::int64_t> ids) {
    const LayerStore& store = tenant_.stores[layer];
    std::uint8_t* const rows = slot.layers[layer].rows;
    // Disk rows are read for the whole batch at once: each block once, the queue full.
    if (store.has_disk_rows()) return store.gather(ids, rows, pool_, scratch_);
    for (std::size_t part = 0; part < kParts; ++part) {
        const std::size_t begin = ids.size() * part / kParts;
        const std::size_t end = ids.size() * (part + 1) / kParts;
        std::uint8_t* const out = rows + static_cast<std::int64_t>(begin) * store.row_bytes();
        const auto failure = store.gather(ids.subspan(begin, end - begin), out, pool_, scratch_);
        if (failure) return failure;
        scribe_.progressed(slot, layer, number, part + 1);
    }
    return std::nullopt;
}

}  // namespace gramary::offload
