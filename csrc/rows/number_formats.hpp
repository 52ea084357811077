#pragma once
#include <cstdint>
#include <cstring>

// Conversions between float and the small formats by integer arithmetic: the truth that the
// wide paths are tested against, for every bit pattern. Rounding is to nearest, ties to even; a
// NaN stays a NaN with its sign and the upper bits of its payload, made quiet.
//
// Everything has internal linkage: a copy compiled for a wider instruction set must never be
// merged into the portable code.
//
// Source: IEEE 754-2019 binary16 and binary32; e4m3 and e2m1 of the OCP Microscaling Formats
// (MX) specification v1.0, sections 5.3.1 and 5.3.3.

namespace gramary {

static inline float float_of_bits(std::uint32_t bits) noexcept {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline std::uint32_t bits_of_float(float value) noexcept {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float float_of_bf16(std::uint16_t bits) noexcept {
    return float_of_bits(std::uint32_t{bits} << 16);
}

static inline float float_of_fp16(std::uint16_t bits) noexcept {
    const std::uint32_t sign = (std::uint32_t{bits} & 0x8000) << 16;
    const std::uint32_t exponent = (bits >> 10) & 0x1F, mantissa = bits & 0x3FF;
    if (exponent == 0) {
        // A multiple of 2^-24, which float holds as a normal number or zero.
        return float_of_bits(sign | bits_of_float(static_cast<float>(mantissa) * 0x1p-24f));
    }
    if (exponent == 31) {
        const std::uint32_t quiet = mantissa != 0 ? 0x400000 : 0;
        return float_of_bits(sign | 0x7F800000 | quiet | (mantissa << 13));
    }
    return float_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

static inline float float_of_e4m3(std::uint8_t code) noexcept {
    const std::uint32_t sign = (std::uint32_t{code} & 0x80) << 24;
    const std::uint32_t exponent = (code >> 3) & 0xF, mantissa = code & 7;
    if ((code & 0x7F) == 0x7F) return float_of_bits(sign | 0x7FC00000);
    if (exponent == 0) {
        return float_of_bits(sign | bits_of_float(static_cast<float>(mantissa) * 0x1p-9f));
    }
    return float_of_bits(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

static inline float float_of_e2m1(std::uint8_t code) noexcept {
    const std::uint32_t sign = (std::uint32_t{code} & 8) << 28;
    const std::uint32_t exponent = (code >> 1) & 3, mantissa = code & 1;
    const std::uint32_t magnitude = exponent == 0
                                        ? bits_of_float(static_cast<float>(mantissa) * 0.5f)
                                        : ((exponent + 126) << 23) | (mantissa << 22);
    return float_of_bits(sign | magnitude);
}

static inline std::uint16_t bf16_of_float(float value) noexcept {
    const std::uint32_t bits = bits_of_float(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static inline std::uint16_t fp16_of_float(float value) noexcept {
    const std::uint32_t bits = bits_of_float(value);
    const std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    std::uint32_t result;
    if (magnitude > 0x7F800000) {
        result = 0x7E00 | (magnitude >> 13 & 0x3FF);
    } else if (magnitude >= 0x47800000) {  // 2^16 and more; 65520 and more round up to it below
        result = 0x7C00;
    } else if (magnitude >= 0x38800000) {  // 2^-14 and more: a normal number
        result = (magnitude + 0xFFF + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    } else if (magnitude < 0x33000000) {  // below half of the least subnormal
        result = 0;
    } else {
        // The significand in units of 2^-24.
        const std::uint32_t significand = (magnitude & 0x7FFFFF) | 0x800000;
        const std::uint32_t shift = 126 - (magnitude >> 23);
        const std::uint32_t rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
        result = significand >> shift;
        result += rest > half || (rest == half && (result & 1));
    }
    return static_cast<std::uint16_t>(sign | result);
}

}  // namespace gramary
