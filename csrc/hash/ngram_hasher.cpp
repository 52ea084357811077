#include "hash/ngram_hasher.hpp"

#include <algorithm>

#include "base/first_index.hpp"

namespace gramary {
namespace {

// Tokens mixed at a time, so that their values stay in the first-level cache.
constexpr std::int64_t kBlock = 128;
// Tokens a thread takes at a time: worth more than waking it.
constexpr std::int64_t kGrain = 2048;

// The predecessors of the next token, nearest first. A token enters in front; an EOS also
// takes the place of all that lies behind it.
template <int N>
inline void enter(std::uint64_t* previous, std::uint64_t token, std::uint64_t eos) noexcept {
    for (int i = N - 2; i > 0; --i) previous[i] = token == eos ? eos : previous[i - 1];
    previous[0] = token;
}

}  // namespace

NgramHasher::NgramHasher(std::int64_t vocab_size, std::int64_t eos_token_id,
                         const std::vector<std::int64_t>& multipliers,
                         const std::vector<std::int64_t>& sizes,
                         const std::vector<std::int64_t>& offsets)
    : vocab_size_(static_cast<std::uint64_t>(vocab_size)),
      eos_token_id_(static_cast<std::uint64_t>(eos_token_id)),
      multipliers_(multipliers.begin(), multipliers.end()),
      reducer_(static_cast<std::int64_t>(multipliers.size()) - 1, sizes, offsets) {}

BatchFault NgramHasher::check(const FlatBatch& batch) const noexcept {
    std::int64_t previous = 0;
    for (std::int64_t r = 0; r <= batch.num_requests; ++r) {
        const std::int64_t start = batch.starts[r];
        if (start < previous || start > batch.num_tokens || (r == 0 && start != 0)) {
            return {BatchFault::starts, r};
        }
        previous = start;
    }
    if (batch.history.data == nullptr) return {};
    const std::int64_t length = ngram_size() - 1;
    for (std::int64_t r = 0; r < batch.num_requests; ++r) {
        if (batch.starts[r] == batch.starts[r + 1]) continue;
        for (std::int64_t i = r * length; i < (r + 1) * length; ++i) {
            if (static_cast<std::uint64_t>(batch.history[i]) >= vocab_size_) {
                return {BatchFault::history, i};
            }
        }
    }
    return {};
}

// Predecessors of a live token from its request's earlier tokens, then its history.
template <int N>
void NgramHasher::seed(const FlatBatch& batch, std::int64_t request, std::int64_t token,
                       std::uint64_t* previous) const noexcept {
    const std::int64_t start = batch.starts[request];
    std::fill_n(previous, N - 1, eos_token_id_);
    for (std::int64_t t = token - (N - 1); t < token; ++t) {
        if (t >= start) {
            enter<N>(previous, static_cast<std::uint64_t>(batch.token_ids[t]), eos_token_id_);
        } else if (batch.history.data != nullptr) {
            const std::int64_t i = (request + 1) * (N - 1) + (t - start);
            enter<N>(previous, static_cast<std::uint64_t>(batch.history[i]), eos_token_id_);
        }
    }
}

template <int N, class Token>
std::int64_t NgramHasher::mix(const FlatBatch& batch, std::int64_t begin, std::int64_t end,
                              std::uint64_t* mixed) const noexcept {
    const auto* token_ids = static_cast<const Token*>(batch.token_ids.data);
    const std::uint64_t vocab_size = vocab_size_, eos = eos_token_id_;
    std::uint64_t factors[N];
    std::copy_n(multipliers_.begin(), N, factors);
    std::int64_t request = batch.request_of(begin);
    for (std::int64_t t = begin; t < end; ++request) {
        const std::int64_t stop = std::min<std::int64_t>(end, batch.starts[request + 1]);
        if (stop == t) continue;
        std::uint64_t previous[N - 1];
        seed<N>(batch, request, t, previous);
        for (; t < stop; ++t) {
            const auto token = static_cast<std::uint64_t>(std::int64_t{token_ids[t]});
            if (token >= vocab_size) return t;
            std::uint64_t value = token * factors[0];
            for (int i = 1; i < N; ++i) *mixed++ = value ^= previous[i - 1] * factors[i];
            enter<N>(previous, token, eos);
        }
    }
    return -1;
}

std::int64_t NgramHasher::mix_any(const FlatBatch& batch, std::int64_t begin, std::int64_t end,
                                  std::uint64_t* mixed) const noexcept {
    const bool is_64 = batch.token_ids.is_64;
    const auto mix_sized = [&]<int N>() {
        return is_64 ? mix<N, std::int64_t>(batch, begin, end, mixed)
                     : mix<N, std::int32_t>(batch, begin, end, mixed);
    };
    switch (ngram_size()) {
        case 2:
            return mix_sized.template operator()<2>();
        case 3:
            return mix_sized.template operator()<3>();
        case 4:
            return mix_sized.template operator()<4>();
        default:
            return mix_sized.template operator()<5>();
    }
}

std::int64_t NgramHasher::hash_tokens(const FlatBatch& batch, std::int64_t begin, std::int64_t end,
                                      std::int64_t* ids) const noexcept {
    std::uint64_t mixed[kBlock * (kMaxNgramSize - 1)];
    const ReduceKernel reduce = reduce_kernel(reducer_);
    const std::int64_t live_end = std::clamp(batch.num_live_tokens(), begin, end);
    for (std::int64_t t = begin; t < live_end; t += kBlock) {
        const std::int64_t count = std::min(kBlock, live_end - t);
        const std::int64_t wrong = mix_any(batch, t, t + count, mixed);
        if (wrong >= 0) return wrong;
        reduce(reducer_, mixed, count, ids + (t - begin) * num_heads());
    }
    std::fill(ids + (live_end - begin) * num_heads(), ids + (end - begin) * num_heads(),
              std::int64_t{-1});
    return -1;
}

BatchFault NgramHasher::hash_batch(const FlatBatch& batch, std::int64_t* ids, Pool& pool) const {
    if (const BatchFault fault = check(batch)) return fault;
    FirstIndex first_wrong;
    pool.parallel_for(batch.num_tokens, kGrain, [&](std::int64_t begin, std::int64_t end) {
        const std::int64_t wrong = hash_tokens(batch, begin, end, ids + begin * num_heads());
        if (wrong >= 0) first_wrong.note(wrong);
    });
    const std::int64_t wrong = first_wrong.get();
    return wrong < 0 ? BatchFault{} : BatchFault{BatchFault::token, wrong};
}

}  // namespace gramary
