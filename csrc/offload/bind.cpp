#include "offload/bind.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "base/extent_caster.hpp"
#include "base/unlocked.hpp"
#include "memory/hold_capsule.hpp"
#include "offload/layout.hpp"
#include "offload/row_service.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gramary::offload {
namespace {

template <class T>
T& word(std::uintptr_t address) {
    return *reinterpret_cast<T*>(address);
}

// What the service needs of one table.
struct StoreArguments {
    NgramHasher hasher;
    std::int64_t num_rows;
    std::int64_t row_bytes;
    RowExtent host;
    LayerStore::DiskExtent disk;
    bool is_sent_on;
    std::vector<Hold> holds;

    LayerStore store() const {
        return LayerStore(hasher, num_rows, row_bytes, host, disk, is_sent_on);
    }
};

// A region to serve.
struct TenantArguments {
    std::uintptr_t base;
    RegionLayout layout;
    std::vector<StoreArguments> stores;
    Hold hold;

    std::vector<LayerStore> made_stores() const {
        std::vector<LayerStore> made;
        for (const StoreArguments& each : stores) made.push_back(each.store());
        return made;
    }
    std::vector<Hold> all_holds() const {
        std::vector<Hold> holds{hold};
        for (const StoreArguments& each : stores) {
            holds.insert(holds.end(), each.holds.begin(), each.holds.end());
        }
        return holds;
    }
};

void make_store_arguments(StoreArguments* self, const NgramHasher& hasher, std::int64_t num_rows,
                          std::int64_t row_bytes, const RowExtent& host,
                          const LayerStore::DiskExtent& disk, bool is_sent_on,
                          const std::vector<nb::capsule>& holds) {
    std::vector<Hold> held;
    for (const nb::capsule& capsule : holds) held.push_back(hold_of(capsule));
    new (self) StoreArguments{hasher, num_rows, row_bytes, host, disk, is_sent_on, std::move(held)};
}

void make_tenant_arguments(TenantArguments* self, std::uintptr_t base, const RegionLayout& layout,
                           std::vector<StoreArguments> stores, const nb::capsule& hold) {
    new (self) TenantArguments{
        .base = base, .layout = layout, .stores = std::move(stores), .hold = hold_of(hold)};
}

void make_service(RowService* self, const std::vector<TenantArguments>& arguments,
                  const std::string& poll, int num_threads) {
    std::list<Tenant> tenants;
    for (const TenantArguments& each : arguments) {
        tenants.emplace_back(each.layout.at(each.base), each.made_stores(), each.all_holds());
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
    bind_region(m);
    nb::class_<StoreArguments>(m, "StoreArguments")
        .def("__init__", &make_store_arguments, nb::kw_only(), "hasher"_a, "num_rows"_a,
             "row_bytes"_a, "host"_a, "disk"_a, "is_sent_on"_a, "holds"_a);
    nb::class_<TenantArguments>(m, "TenantArguments")
        .def("__init__", &make_tenant_arguments, nb::kw_only(), "base"_a, "layout"_a, "stores"_a,
             "hold"_a);
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
}

}  // namespace gramary
