#pragma once
#include <nanobind/nanobind.h>

namespace gramary {
void bind_offload(nanobind::module_& m);
// Part of it: the shared memory.
void bind_region(nanobind::module_& m);
}  // namespace gramary
