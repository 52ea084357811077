#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "disk/disk_reader.hpp"

namespace gramary::threads {

// Rows whose bytes follow from their number, so that every reader can check what it got.
constexpr std::int64_t kRowBytes = 64;
constexpr std::int64_t kBlockBytes = 4096;
constexpr std::int64_t kRowsPerBlock = (kBlockBytes - 8) / kRowBytes;
constexpr std::uint64_t kSeed = 17;

void fill_row(std::int64_t row, std::uint8_t* out);
bool is_row(std::int64_t row, const std::uint8_t* bytes);

// A file of rows in blocks with checksums, removed at the end of its life.
class RowFile {
 public:
    explicit RowFile(std::int64_t num_rows);
    ~RowFile();
    RowFile(const RowFile&) = delete;
    RowFile& operator=(const RowFile&) = delete;

    const std::string& path() const noexcept { return path_; }
    // Drops its pages from the page cache, as far as the kernel agrees.
    void cool() const;
    // Writes the first block again, unchanged.
    void rewrite() const;

    // has_checksums: whether the reader checks the blocks.
    DiskReader open(const std::string& reader, bool has_checksums) const;

 private:
    std::string path_;
    std::int64_t num_rows_;
    std::vector<std::uint8_t> first_block_;
};

}  // namespace gramary::threads
