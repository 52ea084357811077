#include "hash/floor_mod.hpp"

#include <algorithm>

#include "base/cpu_features.hpp"

namespace gramary {
namespace {

using Wide = unsigned __int128;

// Just below 1/size: with it, double(value) * inverse is below value/size by a relative error
// between 2^-51 and 2^-49, rounding of both factors included. Truncated, it is the quotient or
// one less for every value < 2^63 and every size >= 2^14.
double inverse_below(std::uint64_t size) {
    return (1.0 / static_cast<double>(size)) * (1.0 - 0x1p-50);
}

// The quotient by reciprocal is the true one or one less, as value * (2^64/size - reciprocal)
// is below 2^64.
std::uint64_t mod(std::uint64_t value, std::uint64_t size, std::uint64_t reciprocal) noexcept {
    const auto quotient = static_cast<std::uint64_t>((Wide{value} * reciprocal) >> 64);
    const std::uint64_t rest = value - quotient * size;
    return rest >= size ? rest - size : rest;
}

}  // namespace

Reducer::Reducer(std::int64_t num_orders, const std::vector<std::int64_t>& sizes,
                 const std::vector<std::int64_t>& offsets)
    : num_orders(num_orders),
      heads_per_order(static_cast<std::int64_t>(sizes.size()) / num_orders),
      sizes(sizes.begin(), sizes.end()),
      offsets(offsets) {
    for (const std::uint64_t size : this->sizes) {
        // For size 1 the reciprocal 2^64 - 1 serves: the quotient is one less, the rest 1 >= 1.
        const Wide reciprocal = (Wide{1} << 64) / size;
        reciprocals.push_back(
            static_cast<std::uint64_t>(std::min(reciprocal, (Wide{1} << 64) - 1)));
        inverses.push_back(inverse_below(size));
    }
    fits_wide = std::all_of(this->sizes.begin(), this->sizes.end(), [](std::uint64_t size) {
        return kMinWideSize <= size && size < kEndWideSize;
    });
}

void reduce_scalar(const Reducer& reducer, const std::uint64_t* mixed, std::int64_t count,
                   std::int64_t* ids) {
    for (std::int64_t i = 0; i < count * reducer.num_orders; ++i) {
        // A negative value v has ~v >= 0 and floor_mod(v, p) = p - 1 - (~v mod p).
        const std::uint64_t sign = mixed[i] >> 63 ? ~std::uint64_t{0} : 0;
        const std::int64_t first = (i % reducer.num_orders) * reducer.heads_per_order;
        for (std::int64_t h = first; h < first + reducer.heads_per_order; ++h) {
            const std::uint64_t size = reducer.sizes[h];
            const std::uint64_t rest = mod(mixed[i] ^ sign, size, reducer.reciprocals[h]);
            *ids++ = static_cast<std::int64_t>((rest ^ sign) + (size & sign)) + reducer.offsets[h];
        }
    }
}

ReduceKernel reduce_kernel(const Reducer& reducer) noexcept {
#if defined(__x86_64__)
    if (reducer.fits_wide && simd_level() >= SimdLevel::avx512) return reduce_avx512;
    if (reducer.fits_wide && simd_level() >= SimdLevel::avx2) return reduce_avx2;
#endif
    (void)reducer;
    return reduce_scalar;
}

}  // namespace gramary
