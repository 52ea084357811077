#pragma once
#include <cstdint>
#include <vector>

#include "hash/flat_batch.hpp"
#include "offload/region.hpp"

namespace gramary::offload {

// One host-lane request's inputs, taken out of the shared memory, once.
//
// Its counts fit the region; what its arrays hold is checked by whoever hashes them. What others
// write into the entry from then on is never seen here. Memory is kept from one request to the
// next.
class InputCopy {
 public:
    // False where the entry's counts do not fit the region; the copy is then empty.
    bool take(const Region& region, const Input& input);

    std::int64_t num_tokens() const noexcept { return num_tokens_; }
    // The batch as a table hashes it that looks `width` tokens back: the inputs carry the widest
    // table's history, whose newest columns are this one's. Valid until the next call.
    FlatBatch batch(std::int64_t width);

 private:
    std::int64_t num_tokens_ = 0;
    std::int64_t num_requests_ = 0;
    bool has_history_ = false;
    std::int64_t widest_ = 0;
    std::vector<std::int64_t> tokens_;
    std::vector<std::int32_t> starts_;
    std::vector<std::int64_t> history_;
    std::vector<std::int64_t> narrowed_;
};

}  // namespace gramary::offload
