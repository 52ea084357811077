#include "disk/block_digests.hpp"

#include <algorithm>

#include "base/cpu_features.hpp"
#include "disk/xxh64.hpp"

namespace gramary {
namespace {

#if defined(__x86_64__)
// From this many blocks on a group is faster than one block after the other, though it be padded.
constexpr std::size_t kGroupFrom = 3;

// Digests whole groups, the last one padded by repeats; returns how many blocks it took.
std::size_t digest_in_groups(const std::uint8_t* const* blocks, const std::uint64_t* seeds,
                             std::size_t count, std::size_t size, std::uint64_t* digests) noexcept {
    std::size_t done = 0;
    for (; done + kDigestGroup <= count; done += kDigestGroup) {
        digest_group_avx512(blocks + done, seeds + done, size, digests + done);
    }
    const std::size_t rest = count - done;
    if (rest < kGroupFrom) return done;
    const std::uint8_t* padded_blocks[kDigestGroup];
    std::uint64_t padded_seeds[kDigestGroup];
    std::uint64_t padded_digests[kDigestGroup];
    for (std::size_t i = 0; i < kDigestGroup; ++i) {
        padded_blocks[i] = blocks[done + std::min(i, rest - 1)];
        padded_seeds[i] = seeds[done + std::min(i, rest - 1)];
    }
    digest_group_avx512(padded_blocks, padded_seeds, size, padded_digests);
    std::copy_n(padded_digests, rest, digests + done);
    return count;
}
#endif

}  // namespace

void digest_blocks(const std::uint8_t* const* blocks, const std::uint64_t* seeds, std::size_t count,
                   std::size_t size, std::uint64_t* digests) noexcept {
    std::size_t done = 0;
#if defined(__x86_64__)
    if (simd_level() >= SimdLevel::avx512 && size >= kXxh64StripeBytes) {
        done = digest_in_groups(blocks, seeds, count, size, digests);
    }
#endif
    for (; done < count; ++done) digests[done] = xxh64(blocks[done], size, seeds[done]);
}

}  // namespace gramary
