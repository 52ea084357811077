#pragma once
#include <cstdint>
#include <vector>

namespace gramary {

// Division-free floor_mod by the sizes of all heads, and the addition of their first rows.
//
// The values of one token are mixed[0 .. num_orders-1]; all heads_per_order heads of an order
// reduce the same value. Every path gives the same ids for every 64-bit value.
struct Reducer {
    std::int64_t num_orders;
    std::int64_t heads_per_order;
    std::vector<std::uint64_t> sizes;        // [num_heads]
    std::vector<std::int64_t> offsets;       // [num_heads]
    std::vector<std::uint64_t> reciprocals;  // floor(2^64 / size), exact arithmetic
    std::vector<double> inverses;            // just below 1 / size, for the wide paths
    bool fits_wide;                          // every size is in [kMinWideSize, kEndWideSize)

    // From kMinWideSize on a double quotient is off by less than one; below kEndWideSize twice
    // a size fits 32 bits.
    static constexpr std::uint64_t kMinWideSize = 1u << 14;
    static constexpr std::uint64_t kEndWideSize = 1u << 31;

    Reducer(std::int64_t num_orders, const std::vector<std::int64_t>& sizes,
            const std::vector<std::int64_t>& offsets);

    std::int64_t num_heads() const noexcept { return num_orders * heads_per_order; }
};

// Writes ids [count, num_heads] for mixed [count, num_orders]; one kernel an instruction set.
using ReduceKernel = void (*)(const Reducer&, const std::uint64_t* mixed, std::int64_t count,
                              std::int64_t* ids);

void reduce_scalar(const Reducer&, const std::uint64_t*, std::int64_t, std::int64_t*);
#if defined(__x86_64__)
void reduce_avx2(const Reducer&, const std::uint64_t*, std::int64_t, std::int64_t*);
void reduce_avx512(const Reducer&, const std::uint64_t*, std::int64_t, std::int64_t*);
#endif

// The fastest kernel that this reducer's sizes and the instruction set in force allow.
ReduceKernel reduce_kernel(const Reducer&) noexcept;

}  // namespace gramary
