#pragma once
#include <nanobind/nanobind.h>

namespace gramary {
void bind_offload(nanobind::module_& m);
}
