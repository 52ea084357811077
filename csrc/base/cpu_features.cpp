#include "base/cpu_features.hpp"

#include <algorithm>
#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gramary {
namespace {

#if defined(__x86_64__)
// Not every compiler lets __builtin_cpu_supports ask for this one.
bool has_f16c() noexcept {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

SimdLevel detect() noexcept {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi2") && has_f16c();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (avx512) return SimdLevel::avx512;
    if (avx2) return SimdLevel::avx2;
#endif
    return SimdLevel::scalar;
}

std::atomic<int> level_in_force{-1};

}  // namespace

SimdLevel detected_simd_level() noexcept {
    static const SimdLevel level = detect();
    return level;
}

SimdLevel simd_level() noexcept {
    const int level = level_in_force.load(std::memory_order_relaxed);
    return level < 0 ? detected_simd_level() : static_cast<SimdLevel>(level);
}

void set_simd_level(SimdLevel level) noexcept {
    const int capped = std::min(static_cast<int>(level), static_cast<int>(detected_simd_level()));
    level_in_force.store(capped, std::memory_order_relaxed);
}

}  // namespace gramary
