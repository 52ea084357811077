#include "memory/host_mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <system_error>

#include "base/thread_pool.hpp"

// Older headers lack these; the values are the kernel's ABI (linux/mman.h, linux/memfd.h,
// linux/mempolicy.h, linux/fcntl.h).
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4U
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

namespace gramary {
namespace {

constexpr int kMfdHugeShift = 26;
constexpr int kMpolPreferred = 1;
// Pieces that one thread populates at a time; a multiple of every common huge page of 2 MiB.
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;

std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
}

[[noreturn]] void fail(int error, const char* what) {
    throw std::system_error(error, std::generic_category(), what);
}

bool prefer_node(void* data, std::size_t num_bytes, int node) {
    constexpr int kMaxNodes = 1024;
    constexpr int kBits = 8 * sizeof(unsigned long);
    if (node < 0 || node >= kMaxNodes) return false;
    unsigned long mask[kMaxNodes / kBits] = {};
    mask[node / kBits] = 1UL << (node % kBits);
    return syscall(SYS_mbind, data, num_bytes, kMpolPreferred, mask, kMaxNodes + 1, 0) == 0;
}

// Kernels before 5.14 cannot populate by advice; touching does the same, without an error.
int populate_base(char* data, std::size_t num_bytes, std::size_t page_bytes) {
    if (madvise(data, num_bytes, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINVAL) return errno;
    for (std::size_t at = 0; at < num_bytes; at += page_bytes) {
        volatile char* byte = data + at;
        *byte = *byte;
    }
    return 0;
}

// A huge page can be put only where at least one small one is, and then replaces it.
bool collapse(char* data, std::size_t num_bytes) {
    volatile char* byte = data;
    *byte = *byte;
    return madvise(data, num_bytes, MADV_COLLAPSE) == 0;
}

}  // namespace

HostMapping::HostMapping(std::size_t num_bytes, Pages pages, std::size_t huge_page_bytes,
                         int numa_node)
    : page_bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
      huge_page_bytes_(huge_page_bytes),
      pages_(pages) {
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    if (pages == Pages::reserved) {
        page_bytes_ = huge_page_bytes;
        flags |= MFD_HUGETLB | static_cast<unsigned>(std::countr_zero(huge_page_bytes))
                                   << kMfdHugeShift;
    }
    mapped_bytes_ = round_up(num_bytes, page_bytes_);
    descriptor_ = static_cast<int>(syscall(SYS_memfd_create, "gramary", flags));
    if (descriptor_ < 0) fail(errno, "memfd_create");
    try {
        if (ftruncate(descriptor_, static_cast<off_t>(mapped_bytes_)) != 0)
            fail(errno, "ftruncate");
        // Where it is refused, the length is guarded by good manners; a worker asks for the seal.
        static_cast<void>(
            fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
        map(pages == Pages::base ? page_bytes_ : huge_page_bytes);
    } catch (...) {
        close();
        throw;
    }
    on_numa_node_ = prefer_node(mapping_->data(), mapped_bytes_, numa_node);
    if (pages == Pages::reserved) huge_bytes_ = mapped_bytes_;
}

HostMapping::~HostMapping() { close(); }

// Reserves a longer range of addresses and puts the mapping at the first aligned one in it.
void HostMapping::map(std::size_t alignment) {
    const std::size_t reserved_bytes = mapped_bytes_ + alignment;
    void* reserved = mmap(nullptr, reserved_bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) fail(errno, "mmap");
    char* begin = static_cast<char*>(reserved);
    char* end = begin + reserved_bytes;
    const auto start = reinterpret_cast<std::uintptr_t>(begin);
    char* data = begin + (round_up(start, alignment) - start);
    if (mmap(data, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor_, 0) ==
        MAP_FAILED) {
        const int error = errno;
        munmap(reserved, reserved_bytes);
        fail(error, "mmap");
    }
    mapping_ = std::make_shared<Mapping>(data, mapped_bytes_);
    if (data > begin) munmap(begin, static_cast<std::size_t>(data - begin));
    char* data_end = data + mapped_bytes_;
    if (end > data_end) munmap(data_end, static_cast<std::size_t>(end - data_end));
}

void HostMapping::populate() {
    const std::shared_ptr<Mapping> held = mapping_;
    if (held == nullptr) fail(EBADF, "populate");
    char* const data = held->data();
    std::atomic<int> error{0};
    std::atomic<std::size_t> huge{0};
    const auto num_pieces =
        static_cast<std::int64_t>((mapped_bytes_ + kPieceBytes - 1) / kPieceBytes);
    ThreadPool::shared().parallel_for(num_pieces, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t piece = begin; piece < end; ++piece) {
            const std::size_t first = static_cast<std::size_t>(piece) * kPieceBytes;
            const std::size_t last = std::min(first + kPieceBytes, mapped_bytes_);
            std::size_t at = first;
            if (pages_ == Pages::transparent) {
                while (at + huge_page_bytes_ <= last && collapse(data + at, huge_page_bytes_)) {
                    at += huge_page_bytes_;
                }
                huge += at - first;
            }
            if (at == last) continue;
            if (const int code = populate_base(data + at, last - at, page_bytes_)) error = code;
        }
    });
    if (pages_ == Pages::transparent) huge_bytes_ = huge;
    if (error != 0) fail(error, "populate");
}

void HostMapping::close() noexcept {
    mapping_.reset();
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
}

}  // namespace gramary
