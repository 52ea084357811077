#include "disk/row_map.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace gramary {
namespace {

[[noreturn]] void refuse(const std::string& what, std::size_t index) {
    throw std::invalid_argument("row layout: " + what + " (entry " + std::to_string(index) + ")");
}

// Last byte that a part touches, or -1 when the arithmetic would overflow.
std::int64_t end_of(const RowPart& part, std::int64_t num_rows) {
    const std::int64_t last = num_rows - 1;
    const std::int64_t rows = std::min(num_rows, part.rows_per_block);
    std::int64_t blocks_bytes = 0;
    std::int64_t rows_bytes = 0;
    std::int64_t end = 0;
    if (__builtin_mul_overflow(last / part.rows_per_block, part.block_bytes, &blocks_bytes) ||
        __builtin_mul_overflow(rows - 1, part.stride, &rows_bytes) ||
        __builtin_add_overflow(part.offset, blocks_bytes, &end) ||
        __builtin_add_overflow(end, rows_bytes, &end) ||
        __builtin_add_overflow(end, part.width, &end)) {
        return -1;
    }
    // The last block may hold fewer rows than rows_per_block.
    if (last / part.rows_per_block > 0) {
        end -= rows_bytes;
        end += (last % part.rows_per_block) * part.stride;
    }
    return end;
}

}  // namespace

RowMap::RowMap(std::vector<RowRun> runs, std::vector<RowPart> parts,
               const std::vector<std::int64_t>& file_bytes, std::int64_t row_bytes)
    : runs_(std::move(runs)), parts_(std::move(parts)), row_bytes_(row_bytes) {
    check(file_bytes);
    for (const RowRun& run : runs_) last_rows_.push_back(run.first_row + run.num_rows - 1);
    num_rows_ = runs_.empty() ? 0 : last_rows_.back() + 1;
    parts_per_row_ = runs_.empty() ? 0 : runs_.front().num_parts;
    is_ascending_ = parts_per_row_ == 1 && find_ascending();
}

bool RowMap::find_ascending() const {
    std::uint64_t end = 0;
    for (const RowRun& run : runs_) {
        const RowPart& part = parts_[static_cast<std::size_t>(run.first_part)];
        const std::int64_t rows = std::min(run.num_rows, part.rows_per_block);
        const bool blocks_ascend =
            rows == run.num_rows || part.block_bytes / part.rows_per_block >= part.stride;
        if (!blocks_ascend || make_address(part.file, part.offset) < end) return false;
        end = make_address(part.file, end_of(part, run.num_rows));
    }
    return true;
}

void RowMap::check(const std::vector<std::int64_t>& file_bytes) const {
    if (row_bytes_ < 1 || row_bytes_ > (1 << 24)) refuse("row_bytes out of range", 0);
    if (file_bytes.size() > static_cast<std::size_t>(kMaxFiles)) refuse("too many files", 0);
    for (std::size_t i = 0; i < file_bytes.size(); ++i) {
        if (file_bytes[i] < 0 || file_bytes[i] > kMaxFileBytes) refuse("file size out of range", i);
    }
    std::int64_t next_row = 0;
    const std::int64_t num_parts = static_cast<std::int64_t>(parts_.size());
    for (std::size_t i = 0; i < runs_.size(); ++i) {
        const RowRun& run = runs_[i];
        if (run.first_row != next_row || run.num_rows < 1 || run.num_rows > kMaxFileBytes) {
            refuse("runs do not cover the rows in order", i);
        }
        if (run.num_parts < 1 || run.num_parts != runs_.front().num_parts || run.first_part < 0 ||
            run.num_parts > num_parts || run.first_part > num_parts - run.num_parts) {
            refuse("parts of a run out of range", i);
        }
        next_row += run.num_rows;
        for (std::int64_t p = run.first_part; p < run.first_part + run.num_parts; ++p) {
            const RowPart& part = parts_[static_cast<std::size_t>(p)];
            const bool sane = part.file >= 0 &&
                              part.file < static_cast<std::int64_t>(file_bytes.size()) &&
                              part.offset >= 0 && part.width >= 1 && part.column >= 0 &&
                              part.width <= row_bytes_ && part.column <= row_bytes_ - part.width &&
                              part.rows_per_block >= 1 && part.block_bytes >= 0 && part.stride >= 0;
            if (!sane) refuse("part out of range", static_cast<std::size_t>(p));
            const std::int64_t end = end_of(part, run.num_rows);
            if (end < 0 || end > file_bytes[static_cast<std::size_t>(part.file)]) {
                refuse("part reaches beyond its file", static_cast<std::size_t>(p));
            }
        }
    }
}

void RowMap::locate(std::int64_t row, std::int64_t position, Fragment* fragments,
                    std::size_t& at) const noexcept {
    if (at >= runs_.size() || row > last_rows_[at] || row < runs_[at].first_row) {
        const auto found = std::lower_bound(last_rows_.begin(), last_rows_.end(), row);
        at = static_cast<std::size_t>(found - last_rows_.begin());
    }
    const RowRun& run = runs_[at];
    const std::int64_t i = row - run.first_row;
    for (std::int64_t p = 0; p < run.num_parts; ++p) {
        const RowPart& part = parts_[static_cast<std::size_t>(run.first_part + p)];
        std::int64_t offset = part.offset;
        if (i < part.rows_per_block) {
            offset += i * part.stride;
        } else {
            const std::int64_t block = i / part.rows_per_block;
            offset += block * part.block_bytes + (i - block * part.rows_per_block) * part.stride;
        }
        fragments[p].address = make_address(part.file, offset);
        fragments[p].target = static_cast<std::uint64_t>(position * row_bytes_ + part.column);
        fragments[p].width = static_cast<std::uint32_t>(part.width);
    }
}

}  // namespace gramary
