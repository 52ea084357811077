#include "rows/row_places.hpp"

#include <algorithm>

namespace gramary {

std::int64_t find_places(const std::int64_t* row_ids, std::int64_t count, std::int64_t first_row,
                         std::int64_t end_row, std::int64_t* places, std::int64_t* found) noexcept {
    std::int64_t num_found = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t row_id = row_ids[i];
        // Written every time and kept sometimes: random ids would defeat a branch.
        places[num_found] = i;
        found[num_found] = row_id;
        num_found += static_cast<std::int64_t>((row_id >= first_row) & (row_id < end_row));
    }
    return num_found;
}

std::int64_t first_wrong_row_id(const std::int64_t* row_ids, std::int64_t count,
                                std::int64_t num_table_rows) noexcept {
    // Blocks are looked through without a branch; the first bad one is searched.
    constexpr std::int64_t kBlock = 1024;
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
        const std::int64_t end = std::min(begin + kBlock, count);
        bool is_right = true;
        for (std::int64_t i = begin; i < end; ++i) {
            is_right &= (row_ids[i] >= -1) & (row_ids[i] < num_table_rows);
        }
        if (is_right) continue;
        for (std::int64_t i = begin; i < end; ++i) {
            if (row_ids[i] < -1 || row_ids[i] >= num_table_rows) return i;
        }
    }
    return -1;
}

}  // namespace gramary
