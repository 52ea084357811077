#include "base/bind.hpp"

#include "base/cpu_features.hpp"
#include "base/thread_pool.hpp"

namespace gramary {

void bind_base(nanobind::module_& m) {
    m.def("detected_simd_level", [] { return static_cast<int>(detected_simd_level()); });
    m.def("simd_level", [] { return static_cast<int>(simd_level()); });
    m.def("set_simd_level", [](int level) { set_simd_level(static_cast<SimdLevel>(level)); });
    m.def("default_num_threads", &ThreadPool::default_num_threads);
    m.def("set_default_num_threads", &ThreadPool::set_default_num_threads);
    m.def("shared_num_threads", [] { return ThreadPool::shared().num_threads(); });
}

}  // namespace gramary
