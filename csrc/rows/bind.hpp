#pragma once
#include <nanobind/nanobind.h>

namespace gramary {
void bind_rows(nanobind::module_& m);
}
