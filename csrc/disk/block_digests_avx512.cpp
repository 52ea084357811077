#if defined(__x86_64__)
#include <immintrin.h>

#include "disk/block_digests.hpp"
#include "disk/xxh64.hpp"

namespace gramary {
namespace {

// A register holds the four accumulators of two blocks, in the order of a stripe's bytes.
constexpr std::size_t kNumPairs = kDigestGroup / 2;

inline __m512i pair_of(const void* low, const void* high) {
    const __m256i first = _mm256_loadu_si256(static_cast<const __m256i*>(low));
    return _mm512_inserti64x4(_mm512_castsi256_si512(first),
                              _mm256_loadu_si256(static_cast<const __m256i*>(high)), 1);
}

}  // namespace

void digest_group_avx512(const std::uint8_t* const* blocks, const std::uint64_t* seeds,
                         std::size_t size, std::uint64_t* digests) noexcept {
    const __m512i prime1 = _mm512_set1_epi64(static_cast<long long>(kXxh64Prime1));
    const __m512i prime2 = _mm512_set1_epi64(static_cast<long long>(kXxh64Prime2));
    Xxh64Accumulators states[kDigestGroup];
    for (std::size_t i = 0; i < kDigestGroup; ++i) states[i] = start_xxh64(seeds[i]);
    __m512i lanes[kNumPairs];
    for (std::size_t i = 0; i < kNumPairs; ++i)
        lanes[i] = pair_of(&states[2 * i], &states[2 * i + 1]);
    const std::size_t stripes_end = size / kXxh64StripeBytes * kXxh64StripeBytes;
    for (std::size_t at = 0; at < stripes_end; at += kXxh64StripeBytes) {
        for (std::size_t i = 0; i < kNumPairs; ++i) {
            const __m512i bytes = pair_of(blocks[2 * i] + at, blocks[2 * i + 1] + at);
            const __m512i sum = _mm512_add_epi64(lanes[i], _mm512_mullo_epi64(bytes, prime2));
            lanes[i] = _mm512_mullo_epi64(_mm512_rol_epi64(sum, 31), prime1);
        }
    }
    for (std::size_t i = 0; i < kNumPairs; ++i) _mm512_storeu_si512(&states[2 * i], lanes[i]);
    for (std::size_t i = 0; i < kDigestGroup; ++i) {
        digests[i] = finish_xxh64(states[i], blocks[i] + stripes_end, size);
    }
}

}  // namespace gramary
#endif
