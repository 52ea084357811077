#include "disk/residency.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "disk/aligned_buffer.hpp"
#include "disk/positioned_read.hpp"

namespace gramary {
namespace {

#ifdef SYS_cachestat
constexpr long kCachestat = SYS_cachestat;
#else
// One number on every architecture.
constexpr long kCachestat = 451;
#endif

// Layouts of the kernel's `struct cachestat_range` and `struct cachestat` (linux/mman.h).
struct CacheRange {
    std::uint64_t offset;
    std::uint64_t length;
};
struct CacheFacts {
    std::uint64_t cached_pages;
    std::uint64_t others[4];
};

constexpr std::size_t kSample = 64;
// A sixteenth: about what separates asking the page cache (some 0.3 us a read) from a fast read.
constexpr std::size_t kFewHits = kSample / 16;
constexpr std::size_t kMostHits = kSample - kFewHits;

// Tries to read a fragment where residency cannot be asked. A kernel that starts the read instead
// may have it done at once, which counts as a hit.
bool try_fragment(const FileSet& files, const Fragment& fragment) {
    thread_local AlignedBuffer buffer;
    const int fd = files.buffered_fd(file_of(fragment.address));
    return read_cached(fd, buffer.reserve(fragment.width), fragment.width,
                       offset_of(fragment.address));
}

}  // namespace

Residency ask_residency(int fd, std::int64_t offset, std::uint32_t length) {
    const CacheRange range{static_cast<std::uint64_t>(offset), length};
    CacheFacts facts{};
    if (::syscall(kCachestat, fd, &range, &facts, 0u) != 0) return Residency::unknown;
    static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t first_page = range.offset / page_bytes;
    const std::uint64_t last_page = (range.offset + length - 1) / page_bytes;
    return facts.cached_pages > last_page - first_page ? Residency::cached : Residency::missing;
}

Warmth measure_warmth(const FileSet& files, std::span<const Fragment> fragments) {
    const std::size_t step = std::max<std::size_t>(1, fragments.size() / kSample);
    const std::size_t count = std::min(kSample, fragments.size());
    std::size_t num_hits = 0;
    bool is_known = true;
    for (std::size_t i = 0; i < count; ++i) {
        const Fragment& fragment = fragments[i * step];
        const Residency answer = ask_residency(files.buffered_fd(file_of(fragment.address)),
                                               offset_of(fragment.address), fragment.width);
        if (answer == Residency::unknown) {
            is_known = false;
            num_hits += try_fragment(files, fragment);
        } else {
            num_hits += answer == Residency::cached;
        }
    }
    if (!is_known) return num_hits * 2 >= count ? Warmth::warm : Warmth::cold;
    if (num_hits * kSample <= kFewHits * count) return Warmth::cold;
    return num_hits * kSample >= kMostHits * count ? Warmth::warm : Warmth::mixed;
}

}  // namespace gramary
