#pragma once
#include <nanobind/nanobind.h>

namespace gramary {
void bind_memory(nanobind::module_& m);
}
