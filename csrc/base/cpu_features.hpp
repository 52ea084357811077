#pragma once

namespace gramary {

// Instruction-set level chosen once per process; wider kernels live in *_avx2.cpp and
// *_avx512.cpp and must be called only when the level allows it.
enum class SimdLevel : int { scalar = 0, avx2 = 1, avx512 = 2 };

// Best level of this CPU (needs OS support for the registers), cached after the first call.
SimdLevel detected_simd_level() noexcept;

// Level in force: the detected one unless set_simd_level lowered it (tests compare levels).
SimdLevel simd_level() noexcept;

// Lowers or restores the level; asking for more than the CPU has gives what it has.
void set_simd_level(SimdLevel level) noexcept;

}  // namespace gramary
