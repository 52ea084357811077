#pragma once
#include <cstdint>

#include "rows/row_codec.hpp"

namespace gramary {

constexpr std::int64_t kNoRow = -1;

// What became of the values of rows that were encoded anew.
struct RecodeReport {
    std::int64_t first_not_finite = kNoRow;  // row with a value that the target cannot hold
    float max_abs = 0;                       // largest difference, computed in float
    double sum_squares = 0;                  // of differences
    double sum_source_squares = 0;
};

// Decodes rows to float and encodes them for `target` (bf16, fp8 or nvfp4; its scale is the
// table's) by round to nearest even. Rows are shared among the threads of the native pool; sums are
// taken in the order of the rows, so that the report never depends on the number of threads.
RecodeReport recode_rows(const RowFormat& source, const RowFormat& target, const std::uint8_t* rows,
                         std::int64_t num_rows, std::uint8_t* out);

// The largest magnitude of the rows' values, and the first row with one that is not finite.
struct Largest {
    float magnitude = 0;
    std::int64_t first_not_finite = kNoRow;
};
Largest find_largest(const RowFormat& source, const std::uint8_t* rows, std::int64_t num_rows);

}  // namespace gramary
