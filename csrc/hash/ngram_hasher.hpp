#pragma once
#include <cstdint>
#include <vector>

#include "base/thread_pool.hpp"
#include "hash/flat_batch.hpp"
#include "hash/floor_mod.hpp"

namespace gramary {

// The first thing wrong with a batch, if anything is.
struct BatchFault {
    enum Kind : int { none = 0, starts = 1, token = 2, history = 3 };
    Kind kind = none;
    std::int64_t index = 0;  // of the element that is wrong, in its flattened tensor

    explicit operator bool() const noexcept { return kind != none; }
};

// Row ids of flat batches, by the constants of one table.
//
// Immutable after construction, so any number of threads may share one. check() comes before
// hash_tokens(): the latter trusts the batch's bounds and histories and checks only tokens.
class NgramHasher {
 public:
    static constexpr std::int64_t kMaxNgramSize = 5;

    NgramHasher(std::int64_t vocab_size, std::int64_t eos_token_id,
                const std::vector<std::int64_t>& multipliers,
                const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& offsets);

    std::int64_t num_heads() const noexcept { return reducer_.num_heads(); }
    std::int64_t ngram_size() const noexcept { return reducer_.num_orders + 1; }

    // Bounds that do not begin at 0, fall, or pass the last token; wrong history tokens.
    BatchFault check(const FlatBatch& batch) const noexcept;

    // Ids of tokens [begin, end) into ids [end-begin, num_heads]; -1 for padding. Gives the
    // index of the first token outside the vocabulary, where hashing stops, or -1.
    std::int64_t hash_tokens(const FlatBatch& batch, std::int64_t begin, std::int64_t end,
                             std::int64_t* ids) const noexcept;

    // Ids of the whole batch, on a thread pool; checks all of it first or on the way.
    BatchFault hash_batch(const FlatBatch& batch, std::int64_t* ids,
                          Pool& pool = ThreadPool::shared()) const;

 private:
    template <int N, class Token>
    std::int64_t mix(const FlatBatch& batch, std::int64_t begin, std::int64_t end,
                     std::uint64_t* mixed) const noexcept;
    std::int64_t mix_any(const FlatBatch& batch, std::int64_t begin, std::int64_t end,
                         std::uint64_t* mixed) const noexcept;
    template <int N>
    void seed(const FlatBatch& batch, std::int64_t request, std::int64_t token,
              std::uint64_t* previous) const noexcept;

    std::uint64_t vocab_size_;
    std::uint64_t eos_token_id_;
    std::vector<std::uint64_t> multipliers_;
    Reducer reducer_;
};

}  // namespace gramary
