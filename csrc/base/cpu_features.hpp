#pragma once

namespace gramary {

// Instruction-set level chosen once per process; wider kernels live in *_avx2.cpp and
// *_avx512.cpp and must be called only when the level allows it.
enum class SimdLevel : int { scalar = 0, avx2 = 1, avx512 = 2 };

// Best level that this process may use: that of the CPU (needs OS support for the registers), or
// the cap where it is lower.
SimdLevel detected_simd_level() noexcept;

// Lowers the best level for the rest of the process, as if the CPU had no more. A later cap can
// lower it again and never raises it, so that each caller's cap is kept.
void cap_simd_level(SimdLevel level) noexcept;

// Level in force: the detected one unless set_simd_level lowered it (tests compare levels).
SimdLevel simd_level() noexcept;

// Lowers or restores the level; asking for more than the detected one gives that.
void set_simd_level(SimdLevel level) noexcept;

}  // namespace gramary
