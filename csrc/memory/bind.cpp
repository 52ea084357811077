#include "memory/bind.hpp"

#include <nanobind/stl/unique_ptr.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "base/unlocked.hpp"
#include "memory/file_mapping.hpp"
#include "memory/hold_capsule.hpp"
#include "memory/host_mapping.hpp"

namespace nb = nanobind;

namespace gramary {
namespace {

// Runs work without the interpreter lock; a system error becomes Python's OSError.
template <typename Work>
auto run_unlocked(Work work) {
    try {
        Unlocked unlocked;
        return work();
    } catch (const std::system_error& error) {
        errno = error.code().value();
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.what());
    }
    throw nb::python_error();
}

}  // namespace

void bind_memory(nb::module_& m) {
    m.def("keep_all_mappings", &Mapping::keep_all);
    m.def("ignore_leaks", [] { nb::set_leak_warnings(false); });
    nb::class_<FileMapping>(m, "FileMapping")
        .def_static("create",
                    [](int descriptor, std::size_t num_bytes, bool is_writable) {
                        return run_unlocked([&] {
                            return std::make_unique<FileMapping>(descriptor, num_bytes,
                                                                 is_writable);
                        });
                    })
        .def("hold", [](const FileMapping& self) { return capsule_of(self.hold()); })
        .def_prop_ro("address", &FileMapping::address)
        .def("close", &FileMapping::close, nb::call_guard<Unlocked>());
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
        .def("hold", [](const HostMapping& self) { return capsule_of(self.hold()); })
        .def("close", &HostMapping::close, nb::call_guard<Unlocked>())
        .def_prop_ro("address", &HostMapping::address)
        .def_prop_ro("mapped_bytes", &HostMapping::mapped_bytes)
        .def_prop_ro("page_bytes", &HostMapping::page_bytes)
        .def_prop_ro("huge_bytes", &HostMapping::huge_bytes)
        .def_prop_ro("on_numa_node", &HostMapping::on_numa_node)
        .def_prop_ro("descriptor", &HostMapping::descriptor);
}

}  // namespace gramary
