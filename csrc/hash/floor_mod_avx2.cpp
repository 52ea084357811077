#if defined(__x86_64__)
#include <immintrin.h>

#include "hash/floor_mod.hpp"

namespace gramary {
namespace {

// value mod size in the low half of every 64-bit lane, for 0 <= value < 2^63: the estimated
// quotient is right or one less, so the rest is below twice the size and fits 32 bits.
// Only the low 32 bits of the quotient matter; adding 2^52 to a whole double puts them there.
inline __m256i mod(__m256i value, __m256d value_as_double, __m256i size, __m256d inverse) {
    const __m256d quotient = _mm256_floor_pd(_mm256_mul_pd(value_as_double, inverse));
    const __m256i bits = _mm256_castpd_si256(_mm256_add_pd(quotient, _mm256_set1_pd(0x1p52)));
    const __m256i rest = _mm256_sub_epi64(value, _mm256_mul_epu32(bits, size));
    const __m256i low = _mm256_min_epu32(rest, _mm256_sub_epi32(rest, size));
    return _mm256_blend_epi32(low, _mm256_setzero_si256(), 0xAA);
}

// Lanes 0 .. count-1 selected, for 1 <= count <= 4 or more.
inline __m256i first_lanes(std::int64_t count) {
    const __m256i lanes = _mm256_setr_epi64x(0, 1, 2, 3);
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), lanes);
}

}  // namespace

void reduce_avx2(const Reducer& reducer, const std::uint64_t* mixed, std::int64_t count,
                 std::int64_t* ids) {
    const std::int64_t heads = reducer.heads_per_order;
    for (std::int64_t i = 0; i < count * reducer.num_orders; ++i) {
        const std::int64_t first = (i % reducer.num_orders) * heads;
        const auto sign = static_cast<std::int64_t>(mixed[i]) >> 63;
        const std::int64_t value = static_cast<std::int64_t>(mixed[i]) ^ sign;
        const __m256i signs = _mm256_set1_epi64x(sign);
        const __m256i values = _mm256_set1_epi64x(value);
        const __m256d doubles = _mm256_set1_pd(static_cast<double>(value));
        for (std::int64_t h = 0; h < heads; h += 4) {
            const __m256i mask = first_lanes(heads - h);
            const auto* sizes = reinterpret_cast<const long long*>(&reducer.sizes[first + h]);
            const auto* offsets = reinterpret_cast<const long long*>(&reducer.offsets[first + h]);
            const __m256i size = _mm256_maskload_epi64(sizes, mask);
            const __m256d inverse = _mm256_maskload_pd(&reducer.inverses[first + h], mask);
            __m256i rest = mod(values, doubles, size, inverse);
            rest = _mm256_add_epi64(_mm256_xor_si256(rest, signs), _mm256_and_si256(size, signs));
            _mm256_maskstore_epi64(reinterpret_cast<long long*>(ids + h), mask,
                                   _mm256_add_epi64(rest, _mm256_maskload_epi64(offsets, mask)));
        }
        ids += heads;
    }
}

}  // namespace gramary
#endif
