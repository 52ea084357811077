#pragma once
#include <cstdint>

namespace gramary {

// Where the ids first_row .. end_row-1 stand in a batch, in order, and which they are.
//
// places and found have room for count entries; gives how many were written. Runs on the calling
// thread: it reads eight bytes an id, and whoever reads the rows then wakes the others.
std::int64_t find_places(const std::int64_t* row_ids, std::int64_t count, std::int64_t first_row,
                         std::int64_t end_row, std::int64_t* places, std::int64_t* found) noexcept;

// The index of the first id that is neither -1 nor one of num_table_rows rows, or -1.
std::int64_t first_wrong_row_id(const std::int64_t* row_ids, std::int64_t count,
                                std::int64_t num_table_rows) noexcept;

}  // namespace gramary
