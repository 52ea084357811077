#include "disk/write_notes.hpp"

#include <linux/magic.h>
#include <sys/inotify.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

namespace gramary {
namespace {

// A descriptor that could write is noted when it is closed, too: asynchronous writes and stores
// through a mapping leave no other note.
constexpr std::uint32_t kWrites = IN_MODIFY | IN_CLOSE_WRITE;

// File systems whose every write passes through this kernel. Source: statfs(2); those that
// linux/magic.h lacks are the file systems' own.
constexpr std::array<std::uint32_t, 8> kLocal{
    EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,       BTRFS_SUPER_MAGIC,  F2FS_SUPER_MAGIC,
    TMPFS_MAGIC,      OVERLAYFS_SUPER_MAGIC, 0x2fc12fc1 /*zfs*/, 0xca451a4e /*bcachefs*/};

bool is_local(int fd) noexcept {
    struct statfs facts;
    if (::fstatfs(fd, &facts) != 0) return false;
    return std::ranges::find(kLocal, static_cast<std::uint32_t>(facts.f_type)) != kLocal.end();
}

}  // namespace

WriteNotes::WriteNotes(const FileSet& files)
    : owner_pid_(::getpid()),
      inotify_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)),
      watches_(static_cast<std::size_t>(files.size()), -1),
      written_(static_cast<std::size_t>(files.size()), false) {
    for (std::int64_t file = 0; inotify_ && file < files.size(); ++file) {
        const int fd = files.buffered_fd(file);
        if (!is_local(fd)) continue;
        // By descriptor: the file that is open, whatever has its name now.
        const std::string path = "/proc/self/fd/" + std::to_string(fd);
        watches_[static_cast<std::size_t>(file)] =
            ::inotify_add_watch(inotify_.get(), path.c_str(), kWrites);
    }
}

bool WriteNotes::may_be_written(std::int64_t file) {
    const auto index = static_cast<std::size_t>(file);
    if (watches_[index] < 0 || ::getpid() != owner_pid_) return true;
    std::lock_guard lock(mutex_);
    take_notes();
    return written_[index];
}

void WriteNotes::take_notes() {
    alignas(inotify_event) char notes[4096];
    for (;;) {
        const ssize_t num_bytes = ::read(inotify_.get(), notes, sizeof notes);
        if (num_bytes < 0 && errno == EINTR) continue;
        if (num_bytes < 0 && errno == EAGAIN) return;
        if (num_bytes <= 0) return give_up();
        for (ssize_t at = 0; at < num_bytes;) {
            inotify_event note;
            std::memcpy(&note, notes + at, sizeof note);
            at += static_cast<ssize_t>(sizeof note + note.len);
            if ((note.mask & IN_Q_OVERFLOW) != 0) return give_up();
            // Also when the kernel ended the watch (IN_IGNORED): what comes later is not noted.
            // Two names of one file share a watch.
            for (std::size_t i = 0; i < watches_.size(); ++i) {
                if (watches_[i] == note.wd) written_[i] = true;
            }
        }
    }
}

void WriteNotes::give_up() noexcept { std::fill(written_.begin(), written_.end(), true); }

}  // namespace gramary
