#include "disk/bind.hpp"

namespace gramary {
void bind_disk(nanobind::module_& m) { (void)m; }
}  // namespace gramary
