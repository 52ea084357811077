#pragma once
#include <cmath>
#include <cstdint>

#include "rows/number_formats.hpp"

// Encoding of float rows by round to nearest, ties to even: the same bytes, for every value, as
// `encode_rows` of gramary.model.codecs. Values too large for a code become the largest one.
//
// Source: e4m3 and e2m1 of the OCP Microscaling Formats (MX) specification v1.0, sections 5.3.1 and
// 5.3.3; the scales of docs/format.md, "Building".

namespace gramary {

constexpr float kE4m3Max = 448.0f;
constexpr float kE2m1Max = 6.0f;

// Of a finite value.
static inline std::uint8_t e4m3_of_float(float value) noexcept {
    const std::uint32_t bits = bits_of_float(value);
    const std::uint32_t sign = bits >> 24 & 0x80;
    const float magnitude = std::fmin(float_of_bits(bits & 0x7FFFFFFF), kE4m3Max);
    const std::uint32_t m = bits_of_float(magnitude);
    // From 2^-6 on a normal number, of 3 mantissa bits.
    const std::uint32_t normal = ((m + 0x7FFFF + (m >> 20 & 1)) >> 20) - (120u << 3);
    // Below, multiples of 2^-9, which is the last place of numbers from 2^14 on.
    const std::uint32_t subnormal = bits_of_float(magnitude + 0x1p14f) - bits_of_float(0x1p14f);
    return static_cast<std::uint8_t>(sign | (m >= 0x3C800000 ? normal : subnormal));
}

// Of a value that is not a NaN, in the low four bits.
static inline std::uint8_t e2m1_of_float(float value) noexcept {
    const std::uint32_t bits = bits_of_float(value);
    const float magnitude = float_of_bits(bits & 0x7FFFFFFF);
    // The middles between codes; a tie goes to the even one.
    const std::uint32_t code = (magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) +
                               (magnitude >= 1.75f) + (magnitude > 2.5f) + (magnitude >= 3.5f) +
                               (magnitude > 5.0f);
    return static_cast<std::uint8_t>((bits >> 28 & 8) | code);
}

}  // namespace gramary
