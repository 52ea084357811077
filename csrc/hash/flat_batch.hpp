#pragma once
#include <algorithm>
#include <cstdint>

namespace gramary {

// Integers of 32 or 64 bits behind one pointer, read as 64 bits.
struct IntegerArray {
    const void* data;
    bool is_64;

    std::int64_t operator[](std::int64_t i) const noexcept {
        return is_64 ? static_cast<const std::int64_t*>(data)[i]
                     : static_cast<const std::int32_t*>(data)[i];
    }
};

// One forward's tokens, back to back, and the bounds of the requests they belong to.
//
// Request r owns tokens starts[r] .. starts[r+1]-1; tokens from starts[num_requests] on are
// padding. History holds the history_length tokens before each request, oldest first; without
// data, every request begins its stream. The batch owns nothing.
struct FlatBatch {
    IntegerArray token_ids;
    std::int64_t num_tokens;
    const std::int32_t* starts;  // [num_requests + 1]
    std::int64_t num_requests;
    IntegerArray history;  // [num_requests, history_length], or no data

    std::int64_t num_live_tokens() const noexcept { return starts[num_requests]; }

    // The request that owns a live token.
    std::int64_t request_of(std::int64_t token) const noexcept {
        return std::upper_bound(starts, starts + num_requests + 1, token) - starts - 1;
    }
};

}  // namespace gramary
