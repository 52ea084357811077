#pragma once
#include <cstdint>
#include <mutex>
#include <vector>

#include "disk/file_set.hpp"

namespace gramary {

// Tells a file that was written to from one whose attributes alone were changed (mode, owner,
// links, name), which its change time does not: the kernel notes writes, truncations and the
// closing of descriptors that could write (inotify).
//
// Only where all who may write do so through this kernel: a network file system or one in user
// space brings no notes of others. Without notes (there, without an inotify instance, in a forked
// child that would take the parent's notes, after an overflow) every file counts as written to.
// A store through a mapping leaves no note until the file is closed. Any thread may ask.
class WriteNotes {
 public:
    // Starts watching the open files; what is written from now on is noted.
    explicit WriteNotes(const FileSet& files);

    // Whether the file may have been written to since; stays true.
    bool may_be_written(std::int64_t file);

 private:
    void take_notes();
    void give_up() noexcept;

    int owner_pid_;
    std::mutex mutex_;
    FileDescriptor inotify_;
    std::vector<int> watches_;   // by file; -1: none
    std::vector<bool> written_;  // by file
};

}  // namespace gramary
