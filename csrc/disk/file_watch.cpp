#include "disk/file_watch.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace gramary {
namespace {

std::int64_t now_ns() noexcept {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

// The C library's own goes through the path lookup of newfstatat, which costs as much again.
bool ask(int fd, struct stat& facts) noexcept {
#if defined(SYS_fstat) && defined(__LP64__)
    return ::syscall(SYS_fstat, fd, &facts) == 0;
#else
    return ::fstat(fd, &facts) == 0;
#endif
}

// Whether the size or the time of the last write is another one.
bool differs(const FileIdentity& opened, const struct stat& facts) noexcept {
    return facts.st_size != opened.bytes || nanoseconds(facts.st_mtim) != opened.mtime_ns;
}

// Whether another file has the name that this one was opened by.
bool leads_elsewhere(const FileIdentity& opened) noexcept {
    struct stat facts;
    if (::stat(opened.path.c_str(), &facts) != 0) return false;
    return static_cast<std::int64_t>(facts.st_dev) != opened.device ||
           static_cast<std::int64_t>(facts.st_ino) != opened.inode;
}

}  // namespace

FileWatch::FileWatch(const FileSet& files, bool has_checksums)
    : files_(files),
      has_checksums_(has_checksums),
      notes_(files),
      ctimes_(at(files.size())),
      changed_(at(files.size())),
      looked_at_ns_(now_ns()) {
    for (std::int64_t file = 0; file < files_.size(); ++file) {
        ctimes_[at(file)].store(files_.identity(file).ctime_ns, std::memory_order_relaxed);
        struct stat facts;
        // What was written before the kernel began to take notes.
        if (ask(files_.buffered_fd(file), facts) &&
            identify(files_.identity(file).path, facts) == files_.identity(file)) {
            continue;
        }
        throw FileSet::OpenFailure{file, ESTALE, "the file was changed while it was opened"};
    }
}

bool FileWatch::has_changes() {
    const std::int64_t now = now_ns();
    std::int64_t last = looked_at_ns_.load(std::memory_order_relaxed);
    if (now - last >= kLookEveryNs && looked_at_ns_.compare_exchange_strong(last, now)) look();
    return has_changes_.load(std::memory_order_acquire);
}

void FileWatch::look() {
    bool has_any = false;
    for (std::int64_t file = 0; file < files_.size(); ++file) {
        const bool is_changed = leads_elsewhere(files_.identity(file)) || !is_as_opened(file);
        changed_[at(file)].store(is_changed, std::memory_order_relaxed);
        has_any |= is_changed;
    }
    has_changes_.store(has_any, std::memory_order_release);
}

bool FileWatch::is_as_opened(std::int64_t file) {
    struct stat facts;
    if (!ask(files_.buffered_fd(file), facts)) return false;
    const bool is_known =
        nanoseconds(facts.st_ctim) == ctimes_[at(file)].load(std::memory_order_relaxed);
    if (is_known && (has_checksums_ || !differs(files_.identity(file), facts))) return true;
    return judge(file, facts);
}

// Of a file whose change time moved; one that was written to or replaced comes here again with
// every batch. `facts` are older than the notes that are taken here: what was written before them
// is noted, what is written later moves the time once more.
bool FileWatch::judge(std::int64_t file, const struct stat& facts) {
    if (!has_checksums_ && is_written(file, facts)) return false;
    if (leads_elsewhere(files_.identity(file))) return false;
    ctimes_[at(file)].store(nanoseconds(facts.st_ctim), std::memory_order_relaxed);
    return true;
}

bool FileWatch::is_written(std::int64_t file, const struct stat& facts) {
    const FileIdentity& opened = files_.identity(file);
    if (differs(opened, facts)) return true;
    return nanoseconds(facts.st_ctim) != opened.ctime_ns && notes_.may_be_written(file);
}

std::int64_t FileWatch::find_changed() {
    for (std::int64_t file = 0; file < files_.size(); ++file) {
        struct stat facts;
        if (!ask(files_.buffered_fd(file), facts) || is_written(file, facts) ||
            leads_elsewhere(files_.identity(file))) {
            return file;
        }
    }
    return -1;
}

}  // namespace gramary
