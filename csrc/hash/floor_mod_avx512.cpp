#if defined(__x86_64__)
#include <immintrin.h>

#include "hash/floor_mod.hpp"

namespace gramary {
namespace {

constexpr __mmask16 kLowHalves = 0x5555;

// value mod size in the low half of every 64-bit lane, for 0 <= value < 2^63: the estimated
// quotient is right or one less, so the rest is below twice the size and fits 32 bits.
inline __m512i mod(__m512i value, __m512d value_as_double, __m512i size, __m512d inverse) {
    const __m512i quotient = _mm512_cvttpd_epi64(_mm512_mul_pd(value_as_double, inverse));
    const __m512i rest = _mm512_sub_epi64(value, _mm512_mul_epu32(quotient, size));
    return _mm512_maskz_min_epu32(kLowHalves, rest, _mm512_sub_epi32(rest, size));
}

}  // namespace

void reduce_avx512(const Reducer& reducer, const std::uint64_t* mixed, std::int64_t count,
                   std::int64_t* ids) {
    const std::int64_t heads = reducer.heads_per_order;
    for (std::int64_t i = 0; i < count * reducer.num_orders; ++i) {
        const std::int64_t first = (i % reducer.num_orders) * heads;
        const __m512i sign =
            _mm512_srai_epi64(_mm512_set1_epi64(static_cast<long long>(mixed[i])), 63);
        const __m512i value =
            _mm512_xor_si512(_mm512_set1_epi64(static_cast<long long>(mixed[i])), sign);
        const __m512d value_as_double = _mm512_cvtepi64_pd(value);
        for (std::int64_t h = 0; h < heads; h += 8, ids += 8) {
            const auto mask =
                static_cast<__mmask8>(heads - h >= 8 ? 0xFF : (1u << (heads - h)) - 1);
            const __m512i size = _mm512_maskz_loadu_epi64(mask, &reducer.sizes[first + h]);
            const __m512d inverse = _mm512_maskz_loadu_pd(mask, &reducer.inverses[first + h]);
            const __m512i offset = _mm512_maskz_loadu_epi64(mask, &reducer.offsets[first + h]);
            __m512i rest = mod(value, value_as_double, size, inverse);
            rest = _mm512_add_epi64(_mm512_xor_si512(rest, sign), _mm512_and_si512(size, sign));
            _mm512_mask_storeu_epi64(ids, mask, _mm512_add_epi64(rest, offset));
        }
        ids -= (8 - heads % 8) % 8;
    }
}

}  // namespace gramary
#endif
