#pragma once
#include <nanobind/nanobind.h>

namespace gramary {
void bind_hash(nanobind::module_& m);
}
