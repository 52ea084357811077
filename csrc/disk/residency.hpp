#pragma once
#include <cstdint>
#include <span>

#include "disk/block_plan.hpp"
#include "disk/file_set.hpp"

namespace gramary {

// Whether bytes of a file lie in the page cache.
enum class Residency { cached, missing, unknown };

// Asks the kernel (cachestat, Linux 6.5) without starting a read, unlike RWF_NOWAIT, which newer
// kernels answer by reading ahead. Unknown on older kernels and for files of another user.
Residency ask_residency(int fd, std::int64_t offset, std::uint32_t length);

// How much of a batch the page cache holds.
enum class Warmth {
    cold,   // so little that asking for each read would cost more than it saves
    mixed,  // each read is asked for before it is tried
    warm,   // nearly all: reads are tried at once
};

// Judges a batch by a sample of its fragments.
Warmth measure_warmth(const FileSet& files, std::span<const Fragment> fragments);

}  // namespace gramary
