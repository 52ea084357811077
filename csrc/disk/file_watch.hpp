#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "disk/file_set.hpp"

namespace gramary {

// Notices that the files of a reader are no longer those that were opened: another one has the
// name (a rename over it), or the same one was written to.
//
// The descriptors would go on giving rows of the old file, or a mixture. Looking costs a stat for
// each file, so it is done at most once in kLookEveryNs, by whichever read comes first after that;
// what was seen then holds until the next look. A name that is gone is no reason to stop: the open
// file has not changed. A file that was written to tells nothing about what its bytes are now,
// whatever its size; with `ignores_times` (blocks have checksums) that is left to the read that
// meets them, and so is a size that changed before the next look. Any thread may call.
class FileWatch {
 public:
    static constexpr std::int64_t kLookEveryNs = 1'000'000'000;

    FileWatch(const FileSet& files, bool ignores_times);

    // Looks if it is time to; whether any file is known to have changed.
    bool has_changes();
    // Whether the file had changed at the last look.
    bool is_changed(std::int64_t file) const noexcept {
        return changed_[static_cast<std::size_t>(file)].load(std::memory_order_relaxed);
    }
    // Looks now; the first file that changed in any way, also by its size or time alone, or -1.
    std::int64_t find_changed() const noexcept;

 private:
    void look() noexcept;

    const FileSet& files_;
    bool ignores_times_;
    std::vector<std::atomic<bool>> changed_;
    std::atomic<bool> has_changes_{false};
    std::atomic<std::int64_t> looked_at_ns_;
};

}  // namespace gramary
