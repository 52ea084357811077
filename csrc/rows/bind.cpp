#include "rows/bind.hpp"

namespace gramary {
void bind_rows(nanobind::module_& m) { (void)m; }
}  // namespace gramary
