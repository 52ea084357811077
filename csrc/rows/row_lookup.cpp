#include "rows/row_lookup.hpp"

#include <algorithm>

#include "base/first_index.hpp"
#include "rows/row_sink.hpp"

namespace gramary {
namespace {

// Rows a thread takes at a time: worth more than waking it.
constexpr std::int64_t kGrainRows = 512;
// Rows whose addresses are worked out before they are decoded, if a token has no more.
constexpr std::int64_t kBlockRows = 256;

// The address of a row, which is counted, or of the zero row where the extent does not hold it.
inline const std::uint8_t* address_of(const RowCodec& codec, const RowExtent& extent,
                                      std::int64_t row_id, std::int64_t& num_read) noexcept {
    const std::uint64_t offset =
        static_cast<std::uint64_t>(row_id) - static_cast<std::uint64_t>(extent.first_row);
    const bool is_here = offset < static_cast<std::uint64_t>(extent.num_rows);
    num_read += static_cast<std::int64_t>(is_here);
    return is_here ? extent.source + offset * static_cast<std::uint64_t>(codec.format().row_bytes)
                   : codec.zero_row();
}

}  // namespace

std::int64_t lookup_rows(const RowCodec& codec, const RowExtent& extent,
                         std::int64_t num_table_rows, const std::int64_t* row_ids,
                         std::int64_t count, Output output, std::uint8_t* out, Pool& pool,
                         bool is_sent_on) {
    const RowSink sink(codec, output, count, out, nullptr, is_sent_on);
    const bool is_checked = num_table_rows != kAnyRowId;
    FirstIndex first_wrong;
    pool.parallel_for(count, kGrainRows, [&](std::int64_t begin, std::int64_t end) {
        std::int64_t num_read = 0;
        const auto fill = [&](std::int64_t first, std::int64_t n, const std::uint8_t** rows) {
            for (std::int64_t i = 0; i < n; ++i) {
                const std::int64_t row_id = row_ids[first + i];
                if (is_checked && (row_id < -1 || row_id >= num_table_rows)) {
                    first_wrong.note(first + i);
                    return false;
                }
                rows[i] = address_of(codec, extent, row_id, num_read);
            }
            return true;
        };
        sink.decode(begin, end, kBlockRows, fill);
        extent.count(num_read);
    });
    return first_wrong.get();
}

BatchFault embed_rows(const NgramHasher& hasher, const RowCodec& codec, const RowExtent& extent,
                      const FlatBatch& batch, Output output, std::uint8_t* out, Pool& pool) {
    if (const BatchFault fault = hasher.check(batch)) return fault;
    const std::int64_t heads = hasher.num_heads();
    const RowSink sink(codec, output, batch.num_tokens * heads, out);
    FirstIndex first_wrong;
    const std::int64_t step = std::max<std::int64_t>(kBlockRows / heads, 1) * heads;
    const std::int64_t grain = std::max<std::int64_t>(kGrainRows / heads, 1);
    pool.parallel_for(batch.num_tokens, grain, [&](std::int64_t begin, std::int64_t end) {
        std::int64_t num_read = 0;
        const auto fill = [&](std::int64_t first, std::int64_t n, const std::uint8_t** rows) {
            std::int64_t ids[RowSink::kMaxBlockRows];
            const std::int64_t wrong =
                hasher.hash_tokens(batch, first / heads, (first + n) / heads, ids);
            if (wrong >= 0) {
                first_wrong.note(wrong);
                return false;
            }
            for (std::int64_t i = 0; i < n; ++i) {
                rows[i] = address_of(codec, extent, ids[i], num_read);
            }
            return true;
        };
        sink.decode(begin * heads, end * heads, step, fill);
        extent.count(num_read);
    });
    const std::int64_t wrong = first_wrong.get();
    return wrong < 0 ? BatchFault{} : BatchFault{BatchFault::token, wrong};
}

void decode_rows(const RowCodec& codec, const std::uint8_t* encoded, std::int64_t count,
                 Output output, const std::int64_t* positions, std::uint8_t* out, Pool& pool) {
    const RowSink sink(codec, output, count, out, positions);
    const std::int64_t row_bytes = codec.format().row_bytes;
    const auto fill = [&](std::int64_t first, std::int64_t n, const std::uint8_t** rows) {
        for (std::int64_t i = 0; i < n; ++i) rows[i] = encoded + (first + i) * row_bytes;
        return true;
    };
    pool.parallel_for(count, kGrainRows, [&](std::int64_t begin, std::int64_t end) {
        sink.decode(begin, end, kBlockRows, fill);
    });
}

}  // namespace gramary
