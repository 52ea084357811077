// The shared memory as Python sees it: its layout, and the engine's reading and writing of it.
#include <nanobind/stl/vector.h>

#include <array>
#include <utility>

#include "base/unlocked.hpp"
#include "offload/bind.hpp"
#include "offload/engine_view.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gramary {
namespace {

using namespace offload;

// In the order of Counter.
constexpr std::array kCounterNames{
    "host_requests", "stream_requests", "rows",       "failures",  "late_answers", "waiting_ns",
    "gathering_ns",  "host_rows",       "host_bytes", "disk_rows", "disk_bytes",   "dropped_spans",
};
static_assert(kCounterNames.size() == static_cast<std::size_t>(Counter::dropped_spans) + 1);

nb::tuple tuple_of(const std::vector<std::uint64_t>& places) { return nb::tuple(nb::cast(places)); }

template <class Places>
nb::tuple objects_of(const std::vector<Places>& places) {
    return nb::tuple(nb::cast(places));
}

// Numbers that Python needs where it names a place or a word itself: kernels and tests.
struct RingFields {};

void bind_fields(nb::module_& m) {
    nb::class_<RingFields> fields(m, "RingFields");
    const std::pair<const char*, std::size_t> values[] = {
        {"MAGIC", kMagic},
        {"VERSION", kVersion},
        {"MAX_TABLES", kMaxTables},
        {"LINE", kLine},
        {"PARTS", kParts},
        {"NUM_PHASES", state_of(1, Phase::idle)},
        {"REGION_HEADER_BYTES", sizeof(RegionHeader)},
        {"HOST_NUMBER", offsetof(RegionHeader, host_number)},
        {"STOP", offsetof(RegionHeader, stop)},
        {"SERVICE_STATE", offsetof(RegionHeader, service_state)},
        {"SERVICE_PID", offsetof(RegionHeader, service_pid)},
        {"COUNTERS", offsetof(RegionHeader, counters)},
        {"SLOT_HEADER_BYTES", sizeof(SlotHeader)},
        {"SLOT_NUMBER", offsetof(SlotHeader, number)},
        {"SLOT_NUM_TOKENS", offsetof(SlotHeader, num_tokens)},
        {"RELEASED", offsetof(SlotHeader, released)},
        {"DONE", offsetof(SlotHeader, done)},
        {"SLOT_STATES", offsetof(SlotHeader, states)},
        {"INPUT_HEADER_BYTES", sizeof(InputHeader)},
        {"INPUT_NUM_TOKENS", offsetof(InputHeader, num_tokens)},
        {"INPUT_NUM_REQUESTS", offsetof(InputHeader, num_requests)},
        {"INPUT_CLAIM", offsetof(InputHeader, claim)},
        {"INPUT_STATES", offsetof(InputHeader, states)},
        {"ANSWER_BYTES", sizeof(Answer)},
        {"ANSWER_NUMBER", offsetof(Answer, number)},
        {"ANSWER_FAILURE", offsetof(Answer, failure)},
        {"ANSWER_ERROR", offsetof(Answer, error)},
        {"ANSWER_FILE", offsetof(Answer, file)},
        {"ANSWER_PROGRESS", offsetof(Answer, progress)},
        {"ANSWER_OFFSET", offsetof(Answer, offset)},
        {"READY", offsetof(Answer, ready)},
    };
    for (const auto& [name, value] : values) fields.attr(name) = value;
    m.def("state_of", &state_of);
    m.def("progress_of", &progress_of);
    m.def("failure_of", [](std::int64_t word) { return failure_of(word); });
}

void bind_words(nb::module_& m) {
    nb::enum_<Phase>(m, "Phase", nb::is_arithmetic())
        .value("IDLE", Phase::idle)
        .value("REQUESTED", Phase::requested)
        .value("PUBLISHED", Phase::published)
        .value("FAILED", Phase::failed)
        .value("ABANDONED", Phase::abandoned)
        .value("CLAIMED", Phase::claimed);
    nb::enum_<Failure>(m, "Failure", nb::is_arithmetic())
        .value("NONE", Failure::none)
        .value("READ", Failure::read)
        .value("CHECKSUM", Failure::checksum)
        .value("TOKEN", Failure::token)
        .value("ROW_ID", Failure::row_id)
        .value("INPUTS", Failure::inputs)
        .value("UNKNOWN", Failure::unknown);
}

void bind_layout(nb::module_& m) {
    nb::class_<StatePlaces>(m, "StatePlaces")
        .def_ro("header", &StatePlaces::header)
        .def_ro("states", &StatePlaces::states);
    nb::class_<SlotPlaces, StatePlaces>(m, "SlotPlaces")
        .def_prop_ro("answers", [](const SlotPlaces& self) { return tuple_of(self.answers); })
        .def_prop_ro("ids", [](const SlotPlaces& self) { return tuple_of(self.ids); })
        .def_prop_ro("rows", [](const SlotPlaces& self) { return tuple_of(self.rows); });
    nb::class_<InputPlaces, StatePlaces>(m, "InputPlaces")
        .def_ro("tokens", &InputPlaces::tokens)
        .def_ro("history", &InputPlaces::history)
        .def_ro("starts", &InputPlaces::starts);
    nb::class_<RegionLayout>(m, "RegionLayout")
        .def(
            "__init__",
            [](RegionLayout* self, std::int64_t max_tokens, std::int64_t max_requests,
               std::int64_t history_length, std::vector<std::int64_t> num_heads,
               std::vector<std::int64_t> row_bytes, std::int64_t num_host_slots,
               std::int64_t num_stream_slots, std::int64_t num_inputs) {
                new (self) RegionLayout(RegionShape{
                    .max_tokens = max_tokens,
                    .max_requests = max_requests,
                    .history_length = history_length,
                    .num_heads = std::move(num_heads),
                    .row_bytes = std::move(row_bytes),
                    .num_host_slots = num_host_slots,
                    .num_stream_slots = num_stream_slots,
                    .num_inputs = num_inputs,
                });
            },
            nb::kw_only(), "max_tokens"_a, "max_requests"_a, "history_length"_a, "num_heads"_a,
            "row_bytes"_a, "num_host_slots"_a, "num_stream_slots"_a, "num_inputs"_a)
        .def_prop_ro("all_host_slots",
                     [](const RegionLayout& self) { return objects_of(self.host_slots); })
        .def_prop_ro("all_stream_slots",
                     [](const RegionLayout& self) { return objects_of(self.stream_slots); })
        .def_prop_ro("all_inputs", [](const RegionLayout& self) { return objects_of(self.inputs); })
        .def_ro("num_bytes", &RegionLayout::num_bytes)
        .def("write_header", &RegionLayout::write_header, "address"_a)
        .def("has_header", &RegionLayout::has_header, "address"_a);
}

// What a batch lacks to be written: nothing, or a wrong token's argument and index.
nb::object write_inputs(EngineView& self, std::uint64_t number, std::int64_t vocab_size,
                        std::uintptr_t tokens, bool tokens_are_64, std::int64_t num_tokens,
                        std::uintptr_t starts, std::int64_t num_requests, std::uintptr_t history,
                        bool history_is_64) {
    const FlatBatch batch{{reinterpret_cast<const void*>(tokens), tokens_are_64},
                          num_tokens,
                          reinterpret_cast<const std::int32_t*>(starts),
                          num_requests,
                          {reinterpret_cast<const void*>(history), history_is_64}};
    std::optional<EngineView::WrongToken> wrong;
    {
        const Unlocked unlocked;
        wrong = self.write_inputs(number, batch, vocab_size);
    }
    if (!wrong) return nb::none();
    return nb::make_tuple(wrong->is_history ? "history" : "token_ids", wrong->index);
}

nb::tuple answer_of(const EngineView& self, const SlotPlaces& slot, std::size_t table_index) {
    const Answer& answer = self.answer(slot, table_index);
    return nb::make_tuple(load_acquire(answer.number), failure_of(load_acquire(answer.failure)),
                          static_cast<std::uint32_t>(load_acquire(answer.error)),
                          load_acquire(answer.file),
                          static_cast<std::uint64_t>(load_acquire(answer.offset)));
}

nb::dict counters_of(const EngineView& self) {
    nb::dict counters;
    for (std::size_t i = 0; i < kCounterNames.size(); ++i) {
        counters[kCounterNames[i]] = self.counter(i);
    }
    return counters;
}

void bind_engine_view(nb::module_& m) {
    using Released = nb::call_guard<Unlocked>;
    using AskedSlot = bool (EngineView::*)(const SlotPlaces&, std::uint64_t) const noexcept;
    using AskedInput = bool (EngineView::*)(const InputPlaces&, std::uint64_t) const noexcept;
    nb::class_<EngineView>(m, "EngineView")
        .def(nb::init<std::uintptr_t, const RegionLayout&>())
        .def_prop_ro("address", &EngineView::base)
        .def("write_checked", &write_inputs)
        .def("announce", &EngineView::announce)
        .def("announced", &EngineView::announced)
        .def("take_back", &EngineView::take_back, Released())
        .def("request_slot", &EngineView::request_slot)
        .def("ring_slot", &EngineView::ring_slot)
        .def("slot_number", &EngineView::slot_number)
        .def("was_asked", static_cast<AskedSlot>(&EngineView::was_asked))
        .def("was_asked", static_cast<AskedInput>(&EngineView::was_asked))
        .def("abandon", &EngineView::abandon)
        .def("is_in", &EngineView::is_in)
        .def("is_settled", &EngineView::is_settled)
        .def("ids_address", &EngineView::ids_address)
        .def("rows_address", &EngineView::rows_address)
        .def("wait_ready", &EngineView::wait_ready, Released())
        .def("raise_ready", &EngineView::raise_ready)
        .def("clear_ready", &EngineView::clear_ready)
        .def("answer", &answer_of)
        .def("has_rows", &EngineView::has_rows)
        .def("released", &EngineView::released)
        .def("release", &EngineView::release)
        .def("free_slot", &EngineView::free_slot)
        .def("done", &EngineView::done)
        .def("ask_to_stop", &EngineView::ask_to_stop)
        .def("is_served", &EngineView::is_served)
        .def("counters", &counters_of);
}

}  // namespace

void bind_region(nb::module_& m) {
    bind_fields(m);
    bind_words(m);
    bind_layout(m);
    bind_engine_view(m);
}

}  // namespace gramary
