#pragma once
#include <cstddef>
#include <cstdint>

namespace gramary {

// XXH64 digests of `count` blocks of `size` bytes each. One block's digest waits for its
// multiplications most of the time, so that several blocks at once cost little more than one.
void digest_blocks(const std::uint8_t* const* blocks, const std::uint64_t* seeds, std::size_t count,
                   std::size_t size, std::uint64_t* digests) noexcept;

// Blocks that are worth being brought together.
constexpr std::size_t kDigestGroup = 8;

#if defined(__x86_64__)
// Of kDigestGroup blocks of one stripe (32 bytes) at least.
void digest_group_avx512(const std::uint8_t* const* blocks, const std::uint64_t* seeds,
                         std::size_t size, std::uint64_t* digests) noexcept;
#endif

}  // namespace gramary
