// The extension module `gramary.native._core`: every concern binds its own functions.
//
// Convention of all bindings: tensors arrive as data pointers (integers) with their sizes,
// already checked by the thin Python wrapper in src/gramary/native/; the interpreter lock is
// released around work; errors are C++ exceptions, translated by nanobind.
#include <nanobind/nanobind.h>

#include "base/bind.hpp"
#include "disk/bind.hpp"
#include "hash/bind.hpp"
#include "memory/bind.hpp"
#include "offload/bind.hpp"
#include "rows/bind.hpp"

NB_MODULE(_core, m) {
    gramary::bind_base(m);
    gramary::bind_hash(m);
    gramary::bind_memory(m);
    gramary::bind_rows(m);
    gramary::bind_disk(m);
    gramary::bind_offload(m);
}
