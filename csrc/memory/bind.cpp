#include "memory/bind.hpp"

#include <nanobind/stl/unique_ptr.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "memory/host_mapping.hpp"

namespace nb = nanobind;

namespace gramary {
namespace {

// Runs work without the interpreter lock; a system error becomes Python's OSError.
template <typename Work>
auto run_unlocked(Work work) {
    try {
        nb::gil_scoped_release unlocked;
        return work();
    } catch (const std::system_error& error) {
        errno = error.code().value();
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.what());
    }
    throw nb::python_error();
}

}  // namespace

void bind_memory(nb::module_& m) {
    nb::class_<HostMapping>(m, "HostMapping")
        .def_static(
            "create",
            [](std::size_t num_bytes, int pages, std::size_t huge_page_bytes, int numa_node) {
                return run_unlocked([&] {
                    return std::make_unique<HostMapping>(num_bytes,
                                                         static_cast<HostMapping::Pages>(pages),
                                                         huge_page_bytes, numa_node);
                });
            })
        .def("populate", [](HostMapping& self) { run_unlocked([&] { self.populate(); }); })
        .def("close", &HostMapping::close, nb::call_guard<nb::gil_scoped_release>())
        .def_prop_ro("address", &HostMapping::address)
        .def_prop_ro("mapped_bytes", &HostMapping::mapped_bytes)
        .def_prop_ro("page_bytes", &HostMapping::page_bytes)
        .def_prop_ro("huge_bytes", &HostMapping::huge_bytes)
        .def_prop_ro("on_numa_node", &HostMapping::on_numa_node)
        .def_prop_ro("descriptor", &HostMapping::descriptor);
}

}  // namespace gramary
