#include "hash/bind.hpp"

#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "base/unlocked.hpp"
#include "hash/ngram_hasher.hpp"

namespace nb = nanobind;

namespace gramary {
namespace {

// Hashes a batch that the wrapper has described by addresses. Gives 4 * index + kind of the
// first fault, or 0.
std::int64_t ngram_ids(const NgramHasher& hasher, std::uintptr_t token_ids, bool tokens_are_64,
                       std::int64_t num_tokens, std::uintptr_t starts, std::int64_t num_requests,
                       std::uintptr_t history, bool history_is_64, std::uintptr_t ids) {
    const FlatBatch batch{{reinterpret_cast<const void*>(token_ids), tokens_are_64},
                          num_tokens,
                          reinterpret_cast<const std::int32_t*>(starts),
                          num_requests,
                          {reinterpret_cast<const void*>(history), history_is_64}};
    const BatchFault fault = hasher.hash_batch(batch, reinterpret_cast<std::int64_t*>(ids));
    return 4 * fault.index + fault.kind;
}

}  // namespace

void bind_hash(nb::module_& m) {
    nb::class_<NgramHasher>(m, "NgramHasher")
        .def(nb::init<std::int64_t, std::int64_t, const std::vector<std::int64_t>&,
                      const std::vector<std::int64_t>&, const std::vector<std::int64_t>&>())
        .def("ngram_ids", &ngram_ids, nb::call_guard<Unlocked>());
}

}  // namespace gramary
