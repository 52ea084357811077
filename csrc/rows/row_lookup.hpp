#pragma once
#include <cstdint>

#include "base/extent.hpp"
#include "base/thread_pool.hpp"
#include "hash/ngram_hasher.hpp"
#include "rows/row_codec.hpp"

namespace gramary {

// Encoded rows in memory, one after the other.
using RowExtent = Extent<const std::uint8_t>;

// Rows by id, decoded, on a thread pool; small batches on the calling thread alone.
//
// out is [count, output_bytes]. Ids that the extent does not hold give zero rows and read nothing.
// Gives the index of the first id that is neither -1 nor one of the table's num_table_rows, or
// -1; out is then undefined. With kAnyRowId for num_table_rows no id is wrong. is_sent_on: see
// RowSink.
constexpr std::int64_t kAnyRowId = -1;
std::int64_t lookup_rows(const RowCodec& codec, const RowExtent& extent,
                         std::int64_t num_table_rows, const std::int64_t* row_ids,
                         std::int64_t count, Output output, std::uint8_t* out,
                         Pool& pool = ThreadPool::shared(), bool is_sent_on = false);

// The same for the ids of a batch's tokens, which are never written down: out is
// [num_tokens, num_heads, output_bytes], zero for padding. out is undefined after a fault.
BatchFault embed_rows(const NgramHasher& hasher, const RowCodec& codec, const RowExtent& extent,
                      const FlatBatch& batch, Output output, std::uint8_t* out,
                      Pool& pool = ThreadPool::shared());

// Encoded rows [count, row_bytes], decoded to out rows 0 .. count-1, or to those of positions,
// which must all differ.
void decode_rows(const RowCodec& codec, const std::uint8_t* encoded, std::int64_t count,
                 Output output, const std::int64_t* positions, std::uint8_t* out,
                 Pool& pool = ThreadPool::shared());

}  // namespace gramary
