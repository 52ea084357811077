#include "rows.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "disk/pack_blocks.hpp"
#include "expect.hpp"

namespace gramary::threads {

void fill_row(std::int64_t row, std::uint8_t* out) {
    for (std::int64_t i = 0; i < kRowBytes; ++i) {
        out[i] = static_cast<std::uint8_t>(row * 31 + (row >> 8) + i * 7);
    }
}

bool is_row(std::int64_t row, const std::uint8_t* bytes) {
    std::uint8_t expected[kRowBytes];
    fill_row(row, expected);
    return std::memcmp(expected, bytes, kRowBytes) == 0;
}

RowFile::RowFile(std::int64_t num_rows) : num_rows_(num_rows) {
    const std::int64_t num_blocks = (num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
    std::vector<std::uint8_t> rows(static_cast<std::size_t>(num_rows * kRowBytes));
    for (std::int64_t i = 0; i < num_rows; ++i) fill_row(i, &rows[i * kRowBytes]);
    std::vector<std::uint8_t> blocks(static_cast<std::size_t>(num_blocks * kBlockBytes));
    pack_blocks({kRowBytes, kRowsPerBlock, kBlockBytes, kSeed}, rows.data(), num_rows, 0,
                blocks.data());
    path_ = std::filesystem::temp_directory_path() / "gramary-threads-XXXXXX";
    const FileDescriptor file(::mkstemp(path_.data()));
    EXPECT(file);
    EXPECT(::write(file.get(), blocks.data(), blocks.size()) ==
           static_cast<ssize_t>(blocks.size()));
    EXPECT(::fsync(file.get()) == 0);
    first_block_.assign(blocks.begin(), blocks.begin() + kBlockBytes);
}

RowFile::~RowFile() { ::unlink(path_.c_str()); }

void RowFile::cool() const {
    const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED) == 0);
}

void RowFile::rewrite() const {
    const FileDescriptor file(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT(::pwrite(file.get(), first_block_.data(), first_block_.size(), 0) == kBlockBytes);
}

DiskReader RowFile::open(const std::string& reader, bool has_checksums) const {
    struct stat facts;
    EXPECT(::stat(path_.c_str(), &facts) == 0);
    const RowPart part{0, 0, kRowBytes, 0, kRowsPerBlock, kBlockBytes, kRowBytes};
    RowMap map({{0, num_rows_, 0, 1}}, {part}, {facts.st_size}, kRowBytes);
    const BlockChecks checks =
        has_checksums ? BlockChecks{static_cast<std::uint32_t>(kBlockBytes), kSeed} : BlockChecks{};
    return DiskReader(std::move(map), {identify(path_, facts)}, checks, DiskOptions{reader});
}

}  // namespace gramary::threads
