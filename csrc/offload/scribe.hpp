#pragma once
#include <cstdint>
#include <optional>

#include "offload/service_script.hpp"
#include "offload/tenant.hpp"
#include "offload/trace_log.hpp"

namespace gramary::offload {

// Writes one lane's answers into its tenant's region, counts, and keeps spans.
class Scribe {
 public:
    Scribe(Tenant& tenant, bool is_stream, ServiceScript& script, TraceLog& trace) noexcept
        : tenant_(tenant), is_stream_(is_stream), script_(script), trace_(trace) {}

    void count(Counter counter, std::int64_t amount) noexcept {
        add(tenant_.region.header->counters[static_cast<std::size_t>(counter)], amount);
    }

    // Counts rows of a table, and where they came from.
    void count_rows(const LayerStore& store, std::int64_t num_rows,
                    const GatheredRows& gathered) noexcept;

    // Counts the time from begin_ns until now, in which a table was gathered, and keeps the span.
    void gathered(const LayerStore& store, std::uint64_t number, std::int64_t begin_ns);

    // Counts the time from begin_ns until now, in which a request's slot was not free.
    void waited(std::uint64_t number, std::int64_t begin_ns);

    // The first `part` eighths of a request's rows are in place.
    void progressed(const Slot& slot, std::size_t table_index, std::uint64_t number,
                    std::uint64_t part) noexcept {
        raise_to(slot.tables[table_index].answer->progress, progress_of(number, part));
    }

    // Answers a table of a request, well or with a failure, unless it was given up meanwhile.
    void publish(const Slot& slot, std::size_t table_index, std::uint64_t number,
                 std::uint64_t& state, const std::optional<StoreFailure>& failure);

 private:
    void keep(TraceLog::Kind kind, std::uint64_t number, std::int64_t begin_ns,
              std::int64_t end_ns) {
        if (!trace_.add({kind, is_stream_ ? 1 : 0, number, begin_ns, end_ns})) {
            count(Counter::dropped_spans, 1);
        }
    }

    Tenant& tenant_;
    bool is_stream_;
    ServiceScript& script_;
    TraceLog& trace_;
};

}  // namespace gramary::offload
