#pragma once
#include <cstdint>

#include "base/row_counter.hpp"

namespace gramary {

// A run of rows, numbered as in the table they belong to, and what they are read from: their own
// bytes in memory, or the reader of their files. With no rows it is never followed.
template <class Source>
struct Extent {
    Source* source;
    std::int64_t first_row;
    std::int64_t num_rows;
    // Of the rows read from here; readers of files count by themselves.
    RowCounter* counter = nullptr;

    void count(std::int64_t num_read) const noexcept {
        if (counter != nullptr) counter->add(num_read);
    }
    std::int64_t end_row() const noexcept { return first_row + num_rows; }
};

}  // namespace gramary
