#include "offload/engine_view.hpp"

#include <algorithm>
#include <stdexcept>

#include "offload/waiting.hpp"

namespace gramary::offload {
namespace {

// Copies integers of either width; the index of the first outside 0 .. limit-1, or count.
template <class T>
std::int64_t copy_checked(const T* from, std::int64_t count, std::int64_t limit,
                          std::int64_t* to) noexcept {
    bool is_right = true;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t value = from[i];
        to[i] = value;
        is_right &= static_cast<std::uint64_t>(value) < static_cast<std::uint64_t>(limit);
    }
    if (is_right) return count;
    const auto is_wrong = [limit](std::int64_t value) { return value < 0 || value >= limit; };
    return std::find_if(to, to + count, is_wrong) - to;
}

std::int64_t copy_checked(const IntegerArray& from, std::int64_t begin, std::int64_t count,
                          std::int64_t limit, std::int64_t* to) noexcept {
    if (from.is_64) {
        return copy_checked(static_cast<const std::int64_t*>(from.data) + begin, count, limit, to);
    }
    return copy_checked(static_cast<const std::int32_t*>(from.data) + begin, count, limit, to);
}

}  // namespace

std::optional<EngineView::WrongToken> EngineView::write_inputs(std::uint64_t number,
                                                               const FlatBatch& batch,
                                                               std::int64_t vocab_size) {
    if (batch.num_tokens < 0 || batch.num_tokens > region_.max_tokens || batch.num_requests < 0 ||
        batch.num_requests > region_.max_requests) {
        throw std::invalid_argument("a batch beyond the region's sizes");
    }
    const Input& input = region_.input(number);
    const std::int64_t wrong =
        copy_checked(batch.token_ids, 0, batch.num_tokens, vocab_size, input.tokens);
    if (wrong < batch.num_tokens) return WrongToken{false, wrong};
    std::copy_n(batch.starts, batch.num_requests + 1, input.starts);
    const bool has_history = batch.history.data != nullptr;
    const std::int64_t width = region_.history_length;
    for (std::int64_t r = 0; has_history && r < batch.num_requests; ++r) {
        const std::int64_t found =
            copy_checked(batch.history, r * width, width, vocab_size, input.history + r * width);
        if (found < width && batch.starts[r] < batch.starts[r + 1]) {
            return WrongToken{true, r * width + found};
        }
    }
    InputHeader& header = *input.header;
    store_release(header.num_tokens, batch.num_tokens);
    store_release(header.num_requests, batch.num_requests);
    store_release(header.has_history, std::int64_t{has_history});
    store_release(header.number, number);
    mark_requested(header.states, number);
    store_release(header.claim, state_of(number, Phase::requested));
    return std::nullopt;
}

bool EngineView::take_back(std::uint64_t number, double timeout_s) {
    std::uint64_t& claim = region_.input(number).header->claim;
    if (swap_state(claim, state_of(number, Phase::requested), state_of(number, Phase::abandoned))) {
        return true;
    }
    const std::uint64_t claimed = state_of(number, Phase::claimed);
    return wait_until(timeout_s, [&] { return load_acquire(claim) != claimed; });
}

void EngineView::request_slot(const SlotPlaces& slot, std::uint64_t number,
                              std::int64_t num_tokens) {
    store_release(header(slot).num_tokens, num_tokens);
    mark_requested(header(slot).states, number);
}

bool EngineView::wait_ready(const SlotPlaces& slot, std::size_t table_index,
                            double timeout_s) const {
    const std::uint32_t& flag = answer(slot, table_index).ready;
    return wait_until(timeout_s, [&] { return load_acquire(flag) != 0; });
}

void EngineView::free_slot(const SlotPlaces& slot, std::uint64_t number) {
    for (std::size_t table_index = 0; table_index < num_tables_; ++table_index)
        clear_ready(slot, table_index);
    release(slot, number);
}

std::uint64_t& EngineView::state(const StatePlaces& places, std::size_t table_index) const {
    if (table_index >= num_tables_) throw std::out_of_range("table_index");
    return at_place<std::uint64_t>(base_, places.states)[table_index];
}

void EngineView::mark_requested(std::uint64_t* states, std::uint64_t number) noexcept {
    for (std::size_t table_index = 0; table_index < num_tables_; ++table_index) {
        store_release(states[table_index], state_of(number, Phase::requested));
    }
}

}  // namespace gramary::offload
