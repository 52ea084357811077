#include "base/cpu_features.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gramary {
namespace {

#if defined(__x86_64__)
// Registers of which the operating system keeps the contents: bits of XCR0 (Intel SDM, volume 1,
// 13.3). Without XMM and YMM there is no AVX, without the masks and the ZMM no AVX-512.
constexpr std::uint64_t avx_state = 0x06;
constexpr std::uint64_t avx512_state = 0xE6;

std::uint64_t saved_registers() noexcept {
    std::uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return std::uint64_t{high} << 32 | low;
}

constexpr bool has_all(std::uint64_t found, std::uint64_t wanted) noexcept {
    return (found & wanted) == wanted;
}

// The processor is asked directly. __builtin_cpu_supports answers from a table in the compiler's
// run-time library: Clang's has no F16C, and the one that Zig links is empty.
SimdLevel detect() noexcept {
    unsigned eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return SimdLevel::scalar;
    if (!has_all(ecx, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) return SimdLevel::scalar;
    const std::uint64_t saved = saved_registers();
    if (!has_all(saved, avx_state)) return SimdLevel::scalar;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return SimdLevel::scalar;
    if (!has_all(ebx, bit_AVX2 | bit_BMI2)) return SimdLevel::scalar;
    constexpr unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    const bool is_avx512 = has_all(ebx, avx512) && has_all(saved, avx512_state);
    return is_avx512 ? SimdLevel::avx512 : SimdLevel::avx2;
}
#else
SimdLevel detect() noexcept { return SimdLevel::scalar; }
#endif

constexpr int kNoCap = static_cast<int>(SimdLevel::avx512);
std::atomic<int> level_cap{kNoCap};
std::atomic<int> level_chosen{kNoCap};

}  // namespace

SimdLevel detected_simd_level() noexcept {
    static const int level = static_cast<int>(detect());
    return static_cast<SimdLevel>(std::min(level, level_cap.load(std::memory_order_relaxed)));
}

void cap_simd_level(SimdLevel level) noexcept {
    const int wanted = static_cast<int>(level);
    int cap = level_cap.load(std::memory_order_relaxed);
    while (wanted < cap && !level_cap.compare_exchange_weak(cap, wanted)) {
    }
}

SimdLevel simd_level() noexcept {
    const int chosen = level_chosen.load(std::memory_order_relaxed);
    return static_cast<SimdLevel>(std::min(chosen, static_cast<int>(detected_simd_level())));
}

void set_simd_level(SimdLevel level) noexcept {
    level_chosen.store(static_cast<int>(level), std::memory_order_relaxed);
}

}  // namespace gramary
