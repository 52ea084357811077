#pragma once
#include <cstdint>
#include <cstring>

#include "rows/decode.hpp"

// The loops that all instruction sets share, compiled once for each: everything has internal
// linkage, so that no copy for a wider set is merged into the portable code.

namespace gramary {
namespace {

constexpr std::int64_t kCacheLine = 64;

inline void prefetch(const std::uint8_t* row, std::int64_t row_bytes) {
    for (std::int64_t b = 0; b < row_bytes; b += kCacheLine) __builtin_prefetch(row + b);
    __builtin_prefetch(row + row_bytes - 1);
}

// Decodes the rows of a job with Row::decode(format, row, out), asking for later ones ahead.
template <class Row>
void decode_rows(const RowFormat& format, const DecodeJob& job) {
    const std::int64_t out_bytes = Row::out_bytes(format);
    for (std::int64_t i = 0; i < job.num_rows; ++i) {
        prefetch(job.rows[i + DecodeJob::kPrefetchAhead], format.row_bytes);
        const std::int64_t position = job.positions == nullptr ? i : job.positions[i];
        Row::decode(format, job.rows[i], job.out + position * out_bytes);
    }
}

// A row in steps of 16 columns: Load gives 16 values, Store writes them.
//
// The columns behind the last whole step go through a padded copy, so that nothing is read or
// written beyond the row.
template <class Load, class Store>
struct WideRow {
    static std::int64_t out_bytes(const RowFormat& format) {
        return format.row_dim * Store::kBytes;
    }

    static void decode(const RowFormat& format, const std::uint8_t* row, std::uint8_t* out) {
        std::int64_t column = 0;
        for (; column + 16 <= format.row_dim; column += 16) {
            Store::put(out + column * Store::kBytes, Load::get(format, row, column));
        }
        if (column < format.row_dim) decode_tail(format, row, out, column);
    }

    static void decode_tail(const RowFormat& format, const std::uint8_t* row, std::uint8_t* out,
                            std::int64_t column) {
        alignas(64) std::uint8_t values[16 * 4] = {}, results[16 * 4];
        const std::int64_t count = format.row_dim - column;
        std::memcpy(values, row + column * Load::kBytes, count * Load::kBytes);
        Store::put(results, Load::get(format, values, 0));
        std::memcpy(out + column * Store::kBytes, results, count * Store::kBytes);
    }
};

}  // namespace
}  // namespace gramary
