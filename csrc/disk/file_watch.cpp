#include "disk/file_watch.hpp"

#include <sys/stat.h>

#include <chrono>

namespace gramary {
namespace {

std::int64_t now_ns() noexcept {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

struct Difference {
    bool in_identity = false;  // another file has the name
    bool in_size = false;
    bool in_time = false;
};

// How the file that has the name now differs from the one that was opened; where nobody has the
// name, how the open one does.
Difference compare(const FileIdentity& opened, int fd) noexcept {
    struct stat facts;
    if (::stat(opened.path.c_str(), &facts) != 0 && ::fstat(fd, &facts) != 0) return {};
    const FileIdentity now = identify(opened.path, facts);
    return {now.device != opened.device || now.inode != opened.inode, now.bytes != opened.bytes,
            now.mtime_ns != opened.mtime_ns};
}

}  // namespace

FileWatch::FileWatch(const FileSet& files, bool ignores_times)
    : files_(files),
      ignores_times_(ignores_times),
      changed_(static_cast<std::size_t>(files.size())),
      looked_at_ns_(now_ns()) {}

bool FileWatch::has_changes() {
    const std::int64_t now = now_ns();
    std::int64_t last = looked_at_ns_.load(std::memory_order_relaxed);
    if (now - last >= kLookEveryNs && looked_at_ns_.compare_exchange_strong(last, now)) look();
    return has_changes_.load(std::memory_order_acquire);
}

void FileWatch::look() noexcept {
    bool has_any = false;
    for (std::int64_t file = 0; file < files_.size(); ++file) {
        const FileIdentity& opened = files_.identity(file);
        const Difference difference = compare(opened, files_.buffered_fd(file));
        const bool was_written_to = difference.in_time && !ignores_times_;
        const bool is_changed = difference.in_identity || was_written_to;
        changed_[static_cast<std::size_t>(file)].store(is_changed, std::memory_order_relaxed);
        has_any |= is_changed;
    }
    has_changes_.store(has_any, std::memory_order_release);
}

std::int64_t FileWatch::find_changed() const noexcept {
    for (std::int64_t file = 0; file < files_.size(); ++file) {
        const Difference difference = compare(files_.identity(file), files_.buffered_fd(file));
        if (difference.in_identity || difference.in_size || difference.in_time) return file;
    }
    return -1;
}

}  // namespace gramary
