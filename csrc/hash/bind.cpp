#include "hash/bind.hpp"

namespace gramary {
void bind_hash(nanobind::module_& m) { (void)m; }
}  // namespace gramary
