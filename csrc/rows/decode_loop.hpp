#pragma once
#include <cstdint>
#include <cstring>

#include "rows/decode.hpp"

// The loops that all instruction sets share, compiled once for each: everything has internal
// linkage, so that no copy for a wider set is merged into the portable code.

namespace gramary {
namespace {

constexpr std::int64_t kCacheLine = 64;
// Places ahead at which the whole of a row is asked for.
constexpr std::int64_t kNear = 16;

// Asks for the rows that come after rows[0]: for the first line of a far one, which also brings
// the translation of its page, and for all lines of a near one. Both go to the second-level
// cache; the first level would lose them again.
inline void prefetch_ahead(const std::uint8_t* const* rows, std::int64_t row_bytes) {
    __builtin_prefetch(rows[DecodeJob::kAhead], 0, 2);
    const std::uint8_t* near = rows[kNear];
    for (std::int64_t b = 0; b < row_bytes; b += kCacheLine) __builtin_prefetch(near + b, 0, 2);
    __builtin_prefetch(near + row_bytes - 1, 0, 2);
}

// Decodes the rows of a job with Row::decode(format, row, out), asking for later ones ahead.
template <class Row>
void decode_rows(const RowFormat& format, const DecodeJob& job) {
    const std::int64_t out_bytes = Row::out_bytes(format);
    for (std::int64_t i = 0; i < job.num_rows; ++i) {
        prefetch_ahead(job.rows + i, format.row_bytes);
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
