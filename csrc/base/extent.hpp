#pragma once
#include <cstdint>

namespace gramary {

// A run of rows, numbered as in the table they belong to, and what they are read from: their own
// bytes in memory, or the reader of their files. With no rows it is never followed.
template <class Source>
struct Extent {
    Source* source;
    std::int64_t first_row;
    std::int64_t num_rows;

    std::int64_t end_row() const noexcept { return first_row + num_rows; }
};

}  // namespace gramary
