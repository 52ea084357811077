#pragma once
#include <nanobind/nanobind.h>

namespace gramary {
void bind_base(nanobind::module_& m);
}
