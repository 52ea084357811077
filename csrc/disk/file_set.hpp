#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gramary {

// Owns one file descriptor.
class FileDescriptor {
 public:
    FileDescriptor() = default;
    explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
    ~FileDescriptor();
    FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
    int fd_ = -1;
};

// What a file was when its layout was read; a file that is another one now is refused.
struct FileIdentity {
    std::string path;
    std::int64_t bytes;
    std::int64_t device;
    std::int64_t inode;
    std::int64_t mtime_ns;
    std::int64_t ctime_ns;  // of the last change of bytes or attributes; nobody can put it back

    bool operator==(const FileIdentity&) const = default;
};

inline std::int64_t nanoseconds(const timespec& time) noexcept {
    return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// The identity of what a stat of `path` found.
FileIdentity identify(const std::string& path, const struct stat& facts);

// The open files of a reader, from construction to destruction.
//
// Every file is open for reads through the page cache, without read-ahead, and where the file
// system allows it a second time with O_DIRECT. The descriptors stay on the files that were opened,
// whatever becomes of their names (FileWatch looks at those). The constructor throws OpenFailure
// and leaves no descriptor behind.
class FileSet {
 public:
    struct OpenFailure {
        std::int64_t file;
        int error;  // ESTALE: the file is not the one whose layout was read
        std::string what;
    };

    FileSet(std::vector<FileIdentity> identities, bool want_direct);

    std::int64_t size() const noexcept { return static_cast<std::int64_t>(identities_.size()); }
    // As the file was when it was opened.
    const FileIdentity& identity(std::int64_t file) const noexcept { return identities_[at(file)]; }
    std::int64_t bytes(std::int64_t file) const noexcept { return identities_[at(file)].bytes; }
    int buffered_fd(std::int64_t file) const noexcept { return buffered_[at(file)].get(); }
    // -1 unless direct() holds.
    int direct_fd(std::int64_t file) const noexcept { return direct_[at(file)].get(); }
    // Whether every file can be read with O_DIRECT at direct_alignment().
    bool direct() const noexcept { return direct_alignment_ > 0; }
    // Alignment of offset, length and memory that suits all files; at least 4096, or 0.
    std::uint32_t direct_alignment() const noexcept { return direct_alignment_; }
    // Whether there were too few descriptors to open the files a second time: EMFILE or ENFILE, or
    // 0. Then direct_refusal() names the file.
    int direct_shortage() const noexcept { return direct_shortage_; }
    // Why O_DIRECT is not used although it was wanted, or empty.
    const std::string& direct_refusal() const noexcept { return direct_refusal_; }

 private:
    static std::size_t at(std::int64_t file) noexcept { return static_cast<std::size_t>(file); }
    void open_buffered(std::size_t i);
    void open_direct();

    std::vector<FileIdentity> identities_;
    std::vector<FileDescriptor> buffered_;
    std::vector<FileDescriptor> direct_;
    std::uint32_t direct_alignment_ = 0;
    int direct_shortage_ = 0;
    std::string direct_refusal_;
};

}  // namespace gramary
