#include "offload/bind.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <thread>
#include <tuple>

#include "base/unlocked.hpp"
#include "memory/hold_capsule.hpp"
#include "offload/row_service.hpp"

namespace nb = nanobind;

namespace gramary::offload {
namespace {

using Words = std::vector<std::int64_t>;

template <class T>
T* at(std::uintptr_t base, std::int64_t offset) {
    return reinterpret_cast<T*>(base + static_cast<std::uintptr_t>(offset));
}

template <class T>
T& word(std::uintptr_t address) {
    return *reinterpret_cast<T*>(address);
}

// A slot's places: its header, then answer, ids and rows of each layer.
std::vector<Slot> slots_from(std::uintptr_t base, const std::vector<Words>& places) {
    std::vector<Slot> slots;
    for (const Words& place : places) {
        Slot slot{at<SlotHeader>(base, place.at(0)), {}};
        for (std::size_t i = 1; i < place.size(); i += 3) {
            slot.layers.push_back({at<Answer>(base, place.at(i)),
                                   at<std::int64_t>(base, place.at(i + 1)),
                                   at<std::uint8_t>(base, place.at(i + 2))});
        }
        slots.push_back(std::move(slot));
    }
    return slots;
}

// A layer's hash constants, then its extents, then whether a device reads its results.
LayerStore store_from(const Words& numbers, const Words& multipliers, const Words& sizes,
                      const Words& offsets) {
    const NgramHasher hasher(numbers.at(0), numbers.at(1), multipliers, sizes, offsets);
    return LayerStore(hasher, numbers.at(2), numbers.at(3),
                      {at<const std::uint8_t>(0, numbers.at(4)), numbers.at(5), numbers.at(6)},
                      {at<DiskReader>(0, numbers.at(7)), numbers.at(8), numbers.at(9)},
                      numbers.at(10) != 0);
}

// Numbers, multipliers, sizes and offsets of a layer.
using LayerArguments = std::tuple<Words, Words, Words, Words>;
// Host slots, stream slots, inputs, and the sizes of a region.
using Places = std::tuple<std::vector<Words>, std::vector<Words>, std::vector<Words>, Words>;
// The region's address, its places, the layers, and what all that lies in.
using TenantArguments =
    std::tuple<std::uintptr_t, Places, std::vector<LayerArguments>, std::vector<nb::capsule>>;

Region region_from(std::uintptr_t base, const Places& places) {
    const auto& [host_slots, stream_slots, inputs, sizes] = places;
    Region region{at<RegionHeader>(base, 0),
                  slots_from(base, host_slots),
                  slots_from(base, stream_slots),
                  {},
                  sizes.at(0),
                  sizes.at(1),
                  sizes.at(2)};
    for (const Words& place : inputs) {
        region.inputs.push_back(
            {at<InputHeader>(base, place.at(0)), at<std::int64_t>(base, place.at(1)),
             at<std::int64_t>(base, place.at(2)), at<std::int32_t>(base, place.at(3))});
    }
    return region;
}

void make_service(RowService* self, const std::vector<TenantArguments>& arguments,
                  const std::string& poll, int num_threads) {
    std::list<Tenant> tenants;
    for (const auto& [base, places, layers, holds] : arguments) {
        std::vector<LayerStore> stores;
        for (const auto& [numbers, multipliers, sizes, offsets] : layers) {
            stores.push_back(store_from(numbers, multipliers, sizes, offsets));
        }
        std::vector<Hold> held;
        for (const nb::capsule& capsule : holds) held.push_back(hold_of(capsule));
        tenants.emplace_back(region_from(base, places), std::move(stores), std::move(held));
    }
    new (self) RowService(std::move(tenants), ServiceOptions{Waiter::kind_of(poll), num_threads});
}

nb::list spans_of(RowService& self) {
    nb::list spans;
    for (const TraceLog::Span& span : self.trace().take()) {
        spans.append(nb::make_tuple(static_cast<std::int64_t>(span.kind), span.lane, span.number,
                                    span.begin_ns, span.end_ns));
    }
    return spans;
}

// Waits until a word becomes nonzero, spinning shortly, then sleeping; false after the time-out.
bool wait_word(std::uintptr_t address, double timeout_s) {
    const auto begin = std::chrono::steady_clock::now();
    const auto& flag = word<std::uint32_t>(address);
    Waiter waiter(Waiter::Kind::adaptive);
    while (!load_acquire(flag)) {
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
        if (waited.count() > timeout_s) return false;
        waiter.idle();
    }
    return true;
}

// Waits while a word has a value; false after the time-out.
bool wait_while(std::uintptr_t address, std::uint64_t value, double timeout_s) {
    const auto begin = std::chrono::steady_clock::now();
    const auto& shared = word<std::uint64_t>(address);
    Waiter waiter(Waiter::Kind::adaptive);
    while (load_acquire(shared) == value) {
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
        if (waited.count() > timeout_s) return false;
        waiter.idle();
    }
    return true;
}

// Rings by writing a request's number and waits for the flag, which it lowers and releases: the
// nanoseconds that took as a GPU would see it, or -1 after the time-out.
std::int64_t time_answer(std::uintptr_t slot, std::uintptr_t ready, std::uint64_t number,
                         double timeout_s) {
    auto& header = word<SlotHeader>(slot);
    auto& flag = word<std::uint32_t>(ready);
    const std::int64_t begin_ns = TraceLog::now_ns();
    store_release(header.number, number);
    while (!load_acquire(flag)) {
        if (TraceLog::now_ns() - begin_ns > timeout_s * 1e9) return -1;
    }
    const std::int64_t end_ns = TraceLog::now_ns();
    store_release(flag, std::uint32_t{0});
    store_release(header.released, number);
    return end_ns - begin_ns;
}

}  // namespace
}  // namespace gramary::offload

namespace gramary {

void bind_offload(nb::module_& m) {
    using namespace offload;
    using Released = nb::call_guard<Unlocked>;
    nb::class_<RowService>(m, "RowService")
        .def("__init__", &make_service)
        .def("start", &RowService::start, Released())
        .def("stop", &RowService::stop, Released())
        .def("ask_to_leave", &RowService::ask_to_leave)
        .def("has_left", &RowService::has_left)
        .def("forget", &RowService::forget, Released())
        .def("trace", [](RowService& self, bool on) { self.trace().enable(on); })
        .def("take_spans", &spans_of)
        .def("hold", [](RowService& self, bool held) { self.script().hold(held); })
        .def("set_script",
             [](RowService& self, std::int64_t min_delay_us, std::int64_t max_delay_us,
                std::int64_t fail_every, std::uint64_t seed) {
                 self.script().set({min_delay_us, max_delay_us, fail_every, seed});
             });
    m.def("wait_word", &wait_word, Released());
    m.def("wait_while", &wait_while, Released());
    m.def("time_answer", &time_answer, Released());
    m.def("load_u32", [](std::uintptr_t p) { return load_acquire(word<std::uint32_t>(p)); });
    m.def("load_u64", [](std::uintptr_t p) { return load_acquire(word<std::uint64_t>(p)); });
    m.def("store_u32", [](std::uintptr_t p, std::uint32_t value) {
        store_release(word<std::uint32_t>(p), value);
    });
    m.def("raise_u32",
          [](std::uintptr_t p, std::uint32_t value) { raise_to(word<std::uint32_t>(p), value); });
    m.def("store_u64", [](std::uintptr_t p, std::uint64_t value) {
        store_release(word<std::uint64_t>(p), value);
    });
    m.def("swap_u64", [](std::uintptr_t p, std::uint64_t from, std::uint64_t to) {
        return swap_state(word<std::uint64_t>(p), from, to);
    });
    // Compared with src/gramary/offload/memory/ring.py by a test.
    nb::dict layout;
    layout["magic"] = kMagic;
    layout["version"] = kVersion;
    layout["max_layers"] = kMaxLayers;
    layout["parts"] = kParts;
    layout["num_phases"] = state_of(1, Phase::idle);
    layout["region_header"] = sizeof(RegionHeader);
    layout["host_number"] = offsetof(RegionHeader, host_number);
    layout["stop"] = offsetof(RegionHeader, stop);
    layout["service_state"] = offsetof(RegionHeader, service_state);
    layout["service_pid"] = offsetof(RegionHeader, service_pid);
    layout["counters"] = offsetof(RegionHeader, counters);
    layout["slot_header"] = sizeof(SlotHeader);
    layout["slot_number"] = offsetof(SlotHeader, number);
    layout["slot_num_tokens"] = offsetof(SlotHeader, num_tokens);
    layout["released"] = offsetof(SlotHeader, released);
    layout["done"] = offsetof(SlotHeader, done);
    layout["slot_states"] = offsetof(SlotHeader, states);
    layout["input_header"] = sizeof(InputHeader);
    layout["input_number"] = offsetof(InputHeader, number);
    layout["input_num_tokens"] = offsetof(InputHeader, num_tokens);
    layout["input_num_requests"] = offsetof(InputHeader, num_requests);
    layout["input_has_history"] = offsetof(InputHeader, has_history);
    layout["input_claim"] = offsetof(InputHeader, claim);
    layout["input_states"] = offsetof(InputHeader, states);
    layout["answer"] = sizeof(Answer);
    layout["answer_number"] = offsetof(Answer, number);
    layout["answer_failure"] = offsetof(Answer, failure);
    layout["answer_error"] = offsetof(Answer, error);
    layout["answer_file"] = offsetof(Answer, file);
    layout["answer_progress"] = offsetof(Answer, progress);
    layout["answer_offset"] = offsetof(Answer, offset);
    layout["ready"] = offsetof(Answer, ready);
    m.attr("ring_layout") = layout;
}

}  // namespace gramary
