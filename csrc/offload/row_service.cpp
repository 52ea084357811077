#include "offload/row_service.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace gramary::offload {
namespace {

using Clock = std::chrono::steady_clock;

// Time between two looks at the parent.
constexpr auto kLookEvery = std::chrono::milliseconds(200);

std::int64_t ns_since(Clock::time_point begin) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

}  // namespace

RowService::RowService(Region region, std::vector<LayerStore> stores, const ServiceOptions& options)
    : region_(std::move(region)),
      stores_(std::move(stores)),
      options_(options),
      pool_(options.num_threads,
            options.poll == Waiter::Kind::sleep ? std::chrono::microseconds(0) : Waiter::kSpin) {}

RowService::~RowService() { stop(); }

void RowService::start() {
    dispatcher_ = std::thread([this] { run(); });
}

void RowService::stop() {
    // Once stopped, the region may be gone.
    if (!dispatcher_.joinable()) return;
    store_release(region_.header->stop, std::uint32_t{1});
    dispatcher_.join();
}

void RowService::run(int parent_pid) {
    RegionHeader& header = *region_.header;
    header.service_pid = static_cast<std::uint32_t>(getpid());
    store_release(header.service_state, static_cast<std::uint32_t>(ServiceState::running));
    Waiter waiter(options_.poll);
    std::uint64_t beats = 0;
    Clock::time_point looked = Clock::now();
    while (!load_acquire(header.stop)) {
        store_release(header.heartbeat, ++beats);
        if (parent_pid != 0 && Clock::now() - looked > kLookEvery) {
            if (getppid() != parent_pid) break;
            looked = Clock::now();
        }
        const bool worked_for_stream = serve_streams();
        const bool worked_for_host = serve_host();
        if (worked_for_stream || worked_for_host) {
            waiter.worked();
        } else {
            waiter.idle();
        }
    }
    store_release(header.service_state, static_cast<std::uint32_t>(ServiceState::stopped));
}

bool RowService::serve_streams() {
    bool worked = false;
    for (Slot& slot : region_.stream_slots) {
        if (!load_acquire(slot.header->doorbell)) continue;
        store_release(slot.header->doorbell, std::uint32_t{0});
        serve_stream(slot);
        worked = true;
    }
    return worked;
}

void RowService::serve_stream(Slot& slot) {
    const std::uint64_t number = load_acquire(slot.header->number);
    // The ring of a request that was given up may be seen only when a newer one has its number in
    // place: that one is answered then, and its own ring finds nothing left to do.
    if (number == slot.header->done) return;
    const std::int64_t num_tokens =
        std::clamp<std::int64_t>(slot.header->num_tokens, 0, region_.max_tokens);
    for (std::size_t layer = 0; layer < stores_.size(); ++layer) {
        const LayerStore& store = stores_[layer];
        // Taken out first: a requester whose earlier request was given up may write anew.
        stream_ids_.assign(slot.layers[layer].ids,
                           slot.layers[layer].ids + num_tokens * store.num_heads());
        const std::span<const std::int64_t> ids(stream_ids_);
        const auto begin = Clock::now();
        const std::int64_t begin_ns = TraceLog::now_ns();
        std::optional<StoreFailure> failure = store.check(ids);
        if (!failure) failure = store.gather(ids, slot.layers[layer].rows, pool_);
        count(Counter::gathering_ns, ns_since(begin));
        count(Counter::rows, static_cast<std::int64_t>(ids.size()));
        trace_.add({store.has_disk_rows() ? TraceLog::Kind::read_disk : TraceLog::Kind::gather, 1,
                    number, begin_ns, TraceLog::now_ns()});
        publish(slot, layer, number, slot.header->states[layer], failure);
    }
    store_release(slot.header->done, number);
    count(Counter::stream_requests, 1);
}

bool RowService::serve_host() {
    const std::uint64_t number = served_host_ + 1;
    if (load_acquire(region_.header->host_number) < number) return false;
    Slot& slot = region_.host_slot(number);
    const std::uint64_t slots = region_.host_slots.size();
    if (number > slots && load_acquire(slot.header->released) < number - slots) {
        if (waiting_since_ == Clock::time_point{}) waiting_since_ = Clock::now();
        return false;
    }
    if (waiting_since_ != Clock::time_point{}) {
        const std::int64_t waited = ns_since(waiting_since_), now = TraceLog::now_ns();
        count(Counter::waiting_ns, waited);
        trace_.add({TraceLog::Kind::wait_previous_request, 0, number, now - waited, now});
        waiting_since_ = {};
    }
    answer_host(number, slot, region_.input(number));
    store_release(slot.header->done, number);
    served_host_ = number;
    count(Counter::host_requests, 1);
    return true;
}

void RowService::answer_host(std::uint64_t number, Slot& slot, const Input& input) {
    InputHeader& header = *input.header;
    slot.header->number = number;
    slot.header->num_tokens = header.num_tokens;
    for (std::size_t layer = 0; layer < stores_.size(); ++layer) {
        const LayerStore& store = stores_[layer];
        // Given up before it was begun: there is nothing to answer.
        if (load_acquire(header.states[layer]) != state_of(number, Phase::requested)) continue;
        const std::int64_t width = store.history_length();
        FlatBatch batch{{input.tokens, true},
                        header.num_tokens,
                        input.starts,
                        header.num_requests,
                        {nullptr, true}};
        std::vector<std::int64_t> history;
        if (header.has_history && width == region_.history_length) {
            batch.history.data = input.history;
        } else if (header.has_history) {
            // The inputs carry the widest layer's history; this layer's is its newest columns.
            for (std::int64_t r = 0; r < header.num_requests; ++r) {
                const std::int64_t* end = input.history + (r + 1) * region_.history_length;
                history.insert(history.end(), end - width, end);
            }
            batch.history.data = history.data();
        }
        std::optional<StoreFailure> failure = store.hash(batch, slot.layers[layer].ids, pool_);
        const std::span<const std::int64_t> ids(
            slot.layers[layer].ids,
            static_cast<std::size_t>(header.num_tokens * store.num_heads()));
        if (!failure) failure = gather_in_pieces(layer, number, ids, slot.layers[layer].rows);
        publish(slot, layer, number, header.states[layer], failure);
    }
}

std::optional<StoreFailure> RowService::gather_in_pieces(std::size_t layer, std::uint64_t number,
                                                         std::span<const std::int64_t> ids,
                                                         std::uint8_t* out) {
    const LayerStore& store = stores_[layer];
    const auto kind = store.has_disk_rows() ? TraceLog::Kind::read_disk : TraceLog::Kind::gather;
    for (std::size_t begin = 0; begin < ids.size(); begin += kPieceRows) {
        if (begin > 0) serve_streams();
        store_release(region_.header->heartbeat, load_acquire(region_.header->heartbeat) + 1);
        const auto piece =
            ids.subspan(begin, std::min<std::size_t>(kPieceRows, ids.size() - begin));
        const auto started = Clock::now();
        const std::int64_t begin_ns = TraceLog::now_ns();
        const auto failure =
            store.gather(piece, out + static_cast<std::int64_t>(begin) * store.row_bytes(), pool_);
        count(Counter::gathering_ns, ns_since(started));
        count(Counter::rows, static_cast<std::int64_t>(piece.size()));
        trace_.add({kind, 0, number, begin_ns, TraceLog::now_ns()});
        if (failure) return failure;
    }
    return std::nullopt;
}

void RowService::publish(Slot& slot, std::size_t layer, std::uint64_t number, std::uint64_t& state,
                         const std::optional<StoreFailure>& failure) {
    const auto scripted = script_.suffer(region_.header->stop);
    const auto& outcome = failure ? failure : scripted;
    const std::int64_t begin_ns = TraceLog::now_ns();
    Answer& answer = *slot.layers[layer].answer;
    const StoreFailure told = outcome.value_or(StoreFailure{Failure::none});
    answer.failure = static_cast<std::int32_t>(told.what);
    answer.error = told.error;
    answer.file = told.file;
    answer.offset = told.offset;
    store_release(answer.number, number);
    if (outcome) count(Counter::failures, 1);
    if (swap_state(state, state_of(number, Phase::requested), state_of(number, Phase::published))) {
        store_release(answer.ready, std::uint32_t{1});
    } else {
        count(Counter::late_answers, 1);
    }
    trace_.add(
        {TraceLog::Kind::publish, slot.is_stream ? 1 : 0, number, begin_ns, TraceLog::now_ns()});
}

}  // namespace gramary::offload
