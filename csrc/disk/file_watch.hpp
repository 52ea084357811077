#pragma once
#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "disk/file_set.hpp"
#include "disk/write_notes.hpp"

namespace gramary {

// Notices that the files of a reader are no longer those that were opened: another one has the
// name, or the same one was written to. The descriptors would go on giving rows of the old file, or
// a mixture.
//
// *After* the reads of a batch, `is_as_opened` asks for the change time of each file that it
// touched: one system call, no lock. A write moves that time before it changes a byte, and nobody
// can put it back. It moves too when attributes change (mode, owner, links, name); where that is
// known to be all (WriteNotes), and the name still leads to the file or to none, the file is served
// on. Blocks with checksums prove themselves: with `has_checksums` only another file under the name
// counts.
//
// A symbolic link that was pointed elsewhere moves no time of the file. So all names are looked at
// too, at most once in kLookEveryNs, by whichever read comes first after that; what is known to
// have changed then is not read at all until the next look. A name that is gone is no reason to
// stop. Any thread may call.
class FileWatch {
 public:
    static constexpr std::int64_t kLookEveryNs = 1'000'000'000;

    // Throws FileSet::OpenFailure where a file changed while it was opened.
    FileWatch(const FileSet& files, bool has_checksums);

    // Looks at all files if it is time to; whether any is known to have changed.
    bool has_changes();
    // Whether the file had changed at the last look.
    bool is_changed(std::int64_t file) const noexcept {
        return changed_[at(file)].load(std::memory_order_relaxed);
    }
    // Whether what was read from the file until now is what it held when it was opened.
    bool is_as_opened(std::int64_t file);
    // Looks now; the first file that was replaced or may have been written to, or -1.
    std::int64_t find_changed();

 private:
    static std::size_t at(std::int64_t file) noexcept { return static_cast<std::size_t>(file); }
    bool is_written(std::int64_t file, const struct stat& facts);
    bool judge(std::int64_t file, const struct stat& facts);
    void look();

    const FileSet& files_;
    bool has_checksums_;
    WriteNotes notes_;
    std::vector<std::atomic<std::int64_t>> ctimes_;  // up to which a file was found to be right
    std::vector<std::atomic<bool>> changed_;
    std::atomic<bool> has_changes_{false};
    std::atomic<std::int64_t> looked_at_ns_;
};

}  // namespace gramary
