#include "base/bind.hpp"

#include <fcntl.h>
#include <nanobind/stl/string.h>
#include <sys/mman.h>

#include <chrono>
#include <string>
#include <utility>

#include "base/cpu_features.hpp"
#include "base/descriptor.hpp"
#include "base/gate.hpp"
#include "base/thread_pool.hpp"
#include "base/unlocked.hpp"

namespace nb = nanobind;

namespace gramary {
namespace {

// A gate as a `with` block takes it: entering and leaving are compiled, so that no signal handler
// runs between the count and the block.
struct Entrance {
    Entrance(nb::object error, std::string message)
        : error(std::move(error)), message(std::move(message)) {}

    void enter() {
        if (gate.enter()) return;
        PyErr_SetString(error.ptr(), message.c_str());
        throw nb::python_error();
    }
    bool empty(double timeout_s) {
        return gate.empty(std::chrono::microseconds(static_cast<std::int64_t>(timeout_s * 1e6)));
    }

    Gate gate;
    // What is raised once it is shut.
    nb::object error;
    std::string message;
};

// A descriptor, or OSError as the os module raises it; `path` is what the message names.
Descriptor owned(int number, const nb::object& path) {
    if (number >= 0) return Descriptor(number);
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw nb::python_error();
}

Descriptor open_file(const nb::bytes& path, int flags, int mode, int folder,
                     const nb::object& named) {
    int number = -1;
    do {
        Unlocked unlocked;
        number = ::openat(folder < 0 ? AT_FDCWD : folder, path.c_str(), flags | O_CLOEXEC, mode);
    } while (number < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
    if (PyErr_Occurred()) throw nb::python_error();
    return owned(number, named);
}

}  // namespace

void bind_base(nb::module_& m) {
    nb::class_<Entrance>(m, "Gate")
        .def(nb::init<nb::object, std::string>())
        .def("__enter__", &Entrance::enter)
        .def("__exit__", [](Entrance& self, const nb::args&) { self.gate.leave(); })
        .def("shut", [](Entrance& self) { self.gate.shut(); })
        .def_prop_ro("is_shut", [](const Entrance& self) { return self.gate.is_shut(); })
        .def("empty", &Entrance::empty, nb::call_guard<Unlocked>());
    nb::class_<Descriptor>(m, "Descriptor")
        .def("__enter__", [](nb::object self) { return self; })
        .def("__exit__", [](Descriptor& self, const nb::args&) { self.close(); })
        .def("fileno", &Descriptor::number)
        .def("close", &Descriptor::close);
    m.def("open_file", &open_file);
    m.def("memory_file", [](const std::string& name) {
        return owned(::memfd_create(name.c_str(), MFD_CLOEXEC), nb::cast(name));
    });
    m.def("detected_simd_level", [] { return static_cast<int>(detected_simd_level()); });
    m.def("cap_simd_level", [](int level) { cap_simd_level(static_cast<SimdLevel>(level)); });
    m.def("simd_level", [] { return static_cast<int>(simd_level()); });
    m.def("set_simd_level", [](int level) { set_simd_level(static_cast<SimdLevel>(level)); });
    m.def("default_num_threads", &ThreadPool::default_num_threads);
    m.def("set_default_num_threads", &ThreadPool::set_default_num_threads);
    m.def("shared_num_threads", [] { return ThreadPool::shared().num_threads(); });
}

}  // namespace gramary
