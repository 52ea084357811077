#include "disk/mmap_backend.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/thread_pool.hpp"

namespace gramary {
namespace {

// What one page fault may map: the kernel's fault-around window.
constexpr std::int64_t kFaultBytes = 65536;
constexpr std::int64_t kPieceReads = 32;

}  // namespace

MmapBackend::MmapBackend(const FileSet& files, std::int64_t budget_bytes)
    : files_(files),
      budget_bytes_(budget_bytes),
      mappings_(static_cast<std::size_t>(files.size())) {
    for (std::int64_t i = 0; i < files.size(); ++i) {
        const auto bytes = static_cast<std::size_t>(files.bytes(i));
        if (bytes == 0) continue;
        void* const data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, files.buffered_fd(i), 0);
        if (data == MAP_FAILED) {
            const int error = errno;
            unmap();
            throw FileSet::OpenFailure{i, error, "cannot map the file"};
        }
        // No read-ahead, and no huge page that would count 512 pages for one row.
        (void)::madvise(data, bytes, MADV_RANDOM);
        (void)::madvise(data, bytes, MADV_NOHUGEPAGE);
        mappings_[static_cast<std::size_t>(i)] = {static_cast<std::uint8_t*>(data), bytes};
    }
}

MmapBackend::~MmapBackend() { unmap(); }

void MmapBackend::unmap() noexcept {
    for (const Mapping& mapping : mappings_) {
        if (mapping.data != nullptr) ::munmap(mapping.data, mapping.bytes);
    }
}

// Fails the task where a file no longer has the bytes of a read.
bool MmapBackend::check_sizes(ReadTask& task) const {
    std::int64_t file = -1;
    struct stat facts{};
    for (const BlockRead& read : task.reads()) {
        if (file != file_of(read.address)) {
            file = file_of(read.address);
            if (::fstat(files_.buffered_fd(file), &facts) != 0) facts.st_size = 0;
        }
        if (offset_of(read.address) + read.needed > facts.st_size) {
            const std::int64_t end = std::max<std::int64_t>(offset_of(read.address), facts.st_size);
            task.fail({ReadFailure::Kind::read, make_address(file, end), 0});
            return false;
        }
    }
    return true;
}

void MmapBackend::make_room(std::int64_t bytes) {
    if (touched_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= budget_bytes_) return;
    touched_bytes_.store(bytes, std::memory_order_relaxed);
    for (const Mapping& mapping : mappings_) {
        if (mapping.data != nullptr) (void)::madvise(mapping.data, mapping.bytes, MADV_DONTNEED);
    }
}

void MmapBackend::run(ReadTask& task) {
    if (!check_sizes(task)) return;
    const auto copy = [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t piece = begin; piece < end; piece += kPieceReads) {
            const std::int64_t piece_end = std::min(piece + kPieceReads, end);
            make_room((piece_end - piece) * kFaultBytes);
            Arrival arrivals[kPieceReads];
            for (std::int64_t i = piece; i < piece_end; ++i) {
                const BlockRead& read = task.reads()[static_cast<std::size_t>(i)];
                const auto& mapping = mappings_[static_cast<std::size_t>(file_of(read.address))];
                arrivals[i - piece] = {&read, mapping.data + offset_of(read.address)};
            }
            task.deliver({arrivals, static_cast<std::size_t>(piece_end - piece)});
        }
    };
    ThreadPool::shared().parallel_for(static_cast<std::int64_t>(task.reads().size()), 512, copy);
}

}  // namespace gramary
