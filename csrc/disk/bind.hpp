#pragma once
#include <nanobind/nanobind.h>

namespace gramary {
void bind_disk(nanobind::module_& m);
}
