#include "disk/file_set.hpp"

#include <fcntl.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "disk/descriptor_shortage.hpp"

namespace gramary {
namespace {

constexpr std::uint32_t kMinAlignment = 4096;
constexpr std::uint32_t kMaxAlignment = 1u << 14;

// Alignment that the file system asks of the offsets of direct reads: 0 when it refuses them or
// wants memory on more than a page's boundary, kMinAlignment when it does not say (before
// Linux 6.1).
std::uint32_t ask_direct_alignment(int fd) {
#if defined(STATX_DIOALIGN)
    struct statx facts;
    std::memset(&facts, 0, sizeof facts);
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 &&
        (facts.stx_mask & STATX_DIOALIGN) != 0) {
        if (facts.stx_dio_offset_align == 0) return 0;
        if (facts.stx_dio_mem_align > kMinAlignment) return 0;
        return std::max(kMinAlignment, facts.stx_dio_offset_align);
    }
#else
    (void)fd;
#endif
    return kMinAlignment;
}

int open_retrying(const char* path, int flags) {
    int fd;
    do {
        fd = ::open(path, flags | O_RDONLY | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

}  // namespace

FileIdentity identify(const std::string& path, const struct stat& facts) {
    return {path,
            facts.st_size,
            static_cast<std::int64_t>(facts.st_dev),
            static_cast<std::int64_t>(facts.st_ino),
            nanoseconds(facts.st_mtim),
            nanoseconds(facts.st_ctim)};
}

FileDescriptor::~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
}

FileSet::FileSet(std::vector<FileIdentity> identities, bool want_direct)
    : identities_(std::move(identities)),
      buffered_(identities_.size()),
      direct_(identities_.size()) {
    for (std::size_t i = 0; i < identities_.size(); ++i) open_buffered(i);
    if (want_direct) open_direct();
}

void FileSet::open_buffered(std::size_t i) {
    const FileIdentity& expected = identities_[i];
    const auto index = static_cast<std::int64_t>(i);
    // What has the name now may be a named pipe, which would be waited for.
    buffered_[i] = FileDescriptor(open_retrying(expected.path.c_str(), O_NONBLOCK));
    if (!buffered_[i]) throw OpenFailure{index, errno, "cannot open the file"};
    struct stat facts;
    if (::fstat(buffered_[i].get(), &facts) != 0) {
        throw OpenFailure{index, errno, "cannot stat the file"};
    }
    if (!S_ISREG(facts.st_mode)) throw OpenFailure{index, EINVAL, "not a regular file"};
    if (identify(expected.path, facts) != expected) {
        throw OpenFailure{index, ESTALE, "the file was changed or replaced since it was inspected"};
    }
    (void)::fcntl(buffered_[i].get(), F_SETFL, O_RDONLY);
    // Rows are random: read-ahead would read 32 pages for one.
    (void)::posix_fadvise(buffered_[i].get(), 0, 0, POSIX_FADV_RANDOM);
}

void FileSet::open_direct() {
    std::uint32_t alignment = kMinAlignment;
    for (std::size_t i = 0; i < identities_.size(); ++i) {
        // By descriptor, so that both are the same file whatever became of the path.
        const std::string path = "/proc/self/fd/" + std::to_string(buffered_[i].get());
        direct_[i] = FileDescriptor(open_retrying(path.c_str(), O_DIRECT));
        const int error = direct_[i] ? 0 : errno;
        const std::uint32_t wanted = direct_[i] ? ask_direct_alignment(direct_[i].get()) : 0;
        if (wanted == 0 || wanted > kMaxAlignment || !std::has_single_bit(wanted)) {
            direct_refusal_ = identities_[i].path + ": " +
                              (direct_[i] ? "the file system refuses O_DIRECT" : strerror(error));
            if (is_descriptor_shortage(error)) direct_shortage_ = error;
            direct_ = std::vector<FileDescriptor>(identities_.size());
            return;
        }
        alignment = std::max(alignment, wanted);
    }
    direct_alignment_ = alignment;
}

}  // namespace gramary
