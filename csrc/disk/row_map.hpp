#pragma once
#include <cstdint>
#include <vector>

namespace gramary {

// One column range of a run's rows. Row i of the run has it at byte
// offset + (i / rows_per_block) * block_bytes + (i % rows_per_block) * stride of `file`.
struct RowPart {
    std::int64_t file;
    std::int64_t offset;
    std::int64_t width;
    std::int64_t column;
    std::int64_t rows_per_block;
    std::int64_t block_bytes;
    std::int64_t stride;
};

// Rows first_row .. first_row + num_rows - 1, made of parts first_part .. first_part + num_parts
// - 1.
struct RowRun {
    std::int64_t first_row;
    std::int64_t num_rows;
    std::int64_t first_part;
    std::int64_t num_parts;
};

// A place in the files as one number: the file's index above, the byte offset below.
constexpr int kFileShift = 48;
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 46;
constexpr std::int64_t kMaxFiles = 1 << 15;

inline std::uint64_t make_address(std::int64_t file, std::int64_t offset) {
    return (static_cast<std::uint64_t>(file) << kFileShift) | static_cast<std::uint64_t>(offset);
}
inline std::int64_t file_of(std::uint64_t address) {
    return static_cast<std::int64_t>(address >> kFileShift);
}
inline std::int64_t offset_of(std::uint64_t address) {
    return static_cast<std::int64_t>(address & ((std::uint64_t{1} << kFileShift) - 1));
}

// `width` bytes at `address` of the files that belong at byte `target` of the output.
struct Fragment {
    std::uint64_t address;
    std::uint64_t target;
    std::uint32_t width;
};

// Where every row lies. Immutable; any thread may ask. The constructor throws
// std::invalid_argument unless the runs cover rows 0 .. num_rows - 1 in order, every run has the
// same number of parts, and every part lies inside its file, so that locating never needs a check.
class RowMap {
 public:
    RowMap(std::vector<RowRun> runs, std::vector<RowPart> parts,
           const std::vector<std::int64_t>& file_bytes, std::int64_t row_bytes);

    std::int64_t num_rows() const noexcept { return num_rows_; }
    std::int64_t row_bytes() const noexcept { return row_bytes_; }
    std::int64_t parts_per_row() const noexcept { return parts_per_row_; }

    // Whether every row lies in one part, and behind the rows before it.
    bool is_ascending() const noexcept { return is_ascending_; }

    // Writes parts_per_row() fragments for output row `position`; 0 <= row < num_rows(). `at` is
    // where the row before was found, and becomes where this one is; any number will do at first.
    void locate(std::int64_t row, std::int64_t position, Fragment* fragments,
                std::size_t& at) const noexcept;

 private:
    bool find_ascending() const;
    void check(const std::vector<std::int64_t>& file_bytes) const;

    std::vector<RowRun> runs_;
    std::vector<RowPart> parts_;
    std::vector<std::int64_t> last_rows_;  // searched instead of runs_: contiguous
    std::int64_t row_bytes_;
    std::int64_t num_rows_ = 0;
    std::int64_t parts_per_row_ = 0;
    bool is_ascending_ = false;
};

}  // namespace gramary
