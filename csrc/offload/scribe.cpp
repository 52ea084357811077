#include "offload/scribe.hpp"

namespace gramary::offload {

void Scribe::count_rows(const LayerStore& store, std::int64_t num_rows,
                        const GatheredRows& gathered) noexcept {
    count(Counter::rows, num_rows);
    if (gathered.from_host > 0) {
        count(Counter::host_rows, gathered.from_host);
        count(Counter::host_bytes, gathered.from_host * store.row_bytes());
    }
    if (gathered.from_disk > 0) {
        count(Counter::disk_rows, gathered.from_disk);
        count(Counter::disk_bytes, gathered.from_disk * store.row_bytes());
    }
}

void Scribe::gathered(const LayerStore& store, std::uint64_t number, std::int64_t begin_ns) {
    const std::int64_t end_ns = TraceLog::now_ns();
    count(Counter::gathering_ns, end_ns - begin_ns);
    keep(store.has_disk_rows() ? TraceLog::Kind::read_disk : TraceLog::Kind::gather, number,
         begin_ns, end_ns);
}

void Scribe::waited(std::uint64_t number, std::int64_t begin_ns) {
    const std::int64_t end_ns = TraceLog::now_ns();
    count(Counter::waiting_ns, end_ns - begin_ns);
    keep(TraceLog::Kind::wait_previous_request, number, begin_ns, end_ns);
}

void Scribe::publish(const Slot& slot, std::size_t table_index, std::uint64_t number,
                     std::uint64_t& state, const std::optional<StoreFailure>& failure) {
    const auto scripted = script_.suffer(tenant_);
    const auto& outcome = failure ? failure : scripted;
    const std::int64_t begin_ns = trace_.enabled() ? TraceLog::now_ns() : 0;
    Answer& answer = *slot.tables[table_index].answer;
    const StoreFailure told = outcome.value_or(StoreFailure{Failure::none});
    answer.failure = static_cast<std::int32_t>(told.what);
    answer.error = told.error;
    answer.file = told.file;
    answer.offset = told.offset;
    store_release(answer.number, number);
    if (outcome) count(Counter::failures, 1);
    const Phase settled = outcome ? Phase::failed : Phase::published;
    if (swap_state(state, state_of(number, Phase::requested), state_of(number, settled))) {
        progressed(slot, table_index, number, kParts);
        store_release(answer.ready, std::uint32_t{1});
    } else {
        count(Counter::late_answers, 1);
    }
    if (trace_.enabled()) keep(TraceLog::Kind::publish, number, begin_ns, TraceLog::now_ns());
}

}  // namespace gramary::offload
