#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>

#include "base/extent.hpp"

namespace gramary {

// An extent as Python makes it, by names: the address of its source comes as an integer.
template <class Source>
void bind_extent(nanobind::module_& m, const char* name) {
    namespace nb = nanobind;
    using namespace nb::literals;
    using Bound = Extent<Source>;
    nb::class_<Bound>(m, name)
        .def(
            "__init__",
            [](Bound* self, std::uintptr_t address, std::int64_t first_row, std::int64_t num_rows) {
                new (self) Bound{reinterpret_cast<Source*>(address), first_row, num_rows};
            },
            "address"_a, "first_row"_a, "num_rows"_a)
        .def_prop_ro(
            "address",
            [](const Bound& self) { return reinterpret_cast<std::uintptr_t>(self.source); })
        .def_ro("first_row", &Bound::first_row)
        .def_ro("num_rows", &Bound::num_rows)
        .def_prop_ro("end_row", &Bound::end_row);
}

}  // namespace gramary
