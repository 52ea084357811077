#if defined(__x86_64__)
#include <immintrin.h>

#include "rows/decode.hpp"
#include "rows/decode_loop.hpp"
#include "rows/decode_select.hpp"

namespace gramary {
namespace {

inline __m128i load_128(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
}

template <bool kStreaming>
inline void store_256(std::uint8_t* out, __m256i value) {
    if constexpr (kStreaming) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(out), value);
    } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), value);
    }
}

// 16 floats in two registers.
struct Floats {
    __m256 low, high;
};

// 16 values of a row as floats, before the rounding to the output.
template <Encoding kEncoding>
struct Load;

template <>
struct Load<Encoding::bf16> {
    static constexpr std::int64_t kBytes = 2;

    static Floats get(const RowFormat&, const std::uint8_t* row, std::int64_t column) {
        const std::uint8_t* from = row + column * kBytes;
        return {widen(load_128(from)), widen(load_128(from + 16))};
    }

    static __m256 widen(__m128i bits) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
};

template <>
struct Load<Encoding::fp16> {
    static constexpr std::int64_t kBytes = 2;

    static Floats get(const RowFormat&, const std::uint8_t* row, std::int64_t column) {
        const std::uint8_t* from = row + column * kBytes;
        return {_mm256_cvtph_ps(load_128(from)), _mm256_cvtph_ps(load_128(from + 16))};
    }
};

template <>
struct Load<Encoding::fp32> {
    static constexpr std::int64_t kBytes = 4;

    static Floats get(const RowFormat&, const std::uint8_t* row, std::int64_t column) {
        const auto* from = reinterpret_cast<const float*>(row + column * kBytes);
        return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
    }
};

template <>
struct Load<Encoding::fp8> {
    static constexpr std::int64_t kBytes = 1;

    static Floats get(const RowFormat& format, const std::uint8_t* row, std::int64_t column) {
        const __m256i codes = _mm256_cvtepu8_epi16(load_128(row + column));
        return {scaled(format, _mm256_castsi256_si128(codes)),
                scaled(format, _mm256_extracti128_si256(codes, 1))};
    }

    // Shifted by 7 bits, an e4m3 magnitude is the fp16 number 2^-8 times as large, subnormals
    // included; only NaN (0x7F) is not one. The factor 2^8 is exact.
    static __m256 scaled(const RowFormat& format, __m128i codes) {
        const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7F));
        const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7F));
        const __m128i sign = _mm_slli_epi16(_mm_srli_epi16(codes, 7), 15);
        const __m128i nan = _mm_and_si128(is_nan, _mm_set1_epi16(0x7E00));
        const __m128i bits = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan);
        const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(bits), _mm256_set1_ps(256.0f));
        return _mm256_mul_ps(value, _mm256_set1_ps(format.scale));
    }
};

template <>
struct Load<Encoding::nvfp4> {
    static constexpr std::int64_t kBytes = 1;  // Never used: rows are whole blocks.

    static Floats get(const RowFormat& format, const std::uint8_t* row, std::int64_t column) {
        const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + column / 2));
        const __m128i nibble = _mm_set1_epi8(0xF);
        const __m128i codes = _mm_unpacklo_epi8(_mm_and_si128(pairs, nibble),
                                                _mm_and_si128(_mm_srli_epi16(pairs, 4), nibble));
        const std::uint8_t block_scale = row[format.row_dim / 2 + column / kNvfp4Block];
        const __m256 block = _mm256_set1_ps(format.e4m3_values[block_scale]);
        const __m256 scale = _mm256_set1_ps(format.scale);
        return {scaled(codes, block, scale), scaled(_mm_srli_si128(codes, 8), block, scale)};
    }

    static __m256 scaled(__m128i codes, __m256 block, __m256 scale) {
        const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
        const __m256i wide = _mm256_cvtepu8_epi32(codes);
        const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(wide, 3), 31);
        const __m256 value =
            _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, wide), _mm256_castsi256_ps(sign));
        return _mm256_mul_ps(_mm256_mul_ps(value, block), scale);
    }
};

// 16 floats rounded to the output and written.
template <Output kOutput, bool kStreaming>
struct Store;

template <bool kStreaming>
struct Store<Output::bf16, kStreaming> {
    static constexpr std::int64_t kBytes = 2;

    static void put(std::uint8_t* out, Floats value) {
        const __m256i packed = _mm256_packus_epi32(rounded(value.low), rounded(value.high));
        store_256<kStreaming>(out, _mm256_permute4x64_epi64(packed, 0b11011000));
    }

    static __m256i rounded(__m256 value) {
        const __m256i bits = _mm256_castps_si256(value);
        const __m256i high = _mm256_srli_epi32(bits, 16);
        const __m256i bias = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)),
                                              _mm256_set1_epi32(0x7FFF));
        const __m256i result = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
        const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
        const __m256i nan = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        return _mm256_blendv_epi8(result, nan, is_nan);
    }
};

template <bool kStreaming>
struct Store<Output::fp16, kStreaming> {
    static constexpr std::int64_t kBytes = 2;

    static void put(std::uint8_t* out, Floats value) {
        const __m128i low = _mm256_cvtps_ph(value.low, _MM_FROUND_TO_NEAREST_INT);
        const __m128i high = _mm256_cvtps_ph(value.high, _MM_FROUND_TO_NEAREST_INT);
        store_256<kStreaming>(out, _mm256_set_m128i(high, low));
    }
};

template <bool kStreaming>
struct Store<Output::fp32, kStreaming> {
    static constexpr std::int64_t kBytes = 4;

    static void put(std::uint8_t* out, Floats value) {
        store_256<kStreaming>(out, _mm256_castps_si256(value.low));
        store_256<kStreaming>(out + 32, _mm256_castps_si256(value.high));
    }
};

template <bool kStreaming>
struct CopiedWideRow {
    static std::int64_t out_bytes(const RowFormat& format) { return format.row_bytes; }

    static void decode(const RowFormat& format, const std::uint8_t* row, std::uint8_t* out) {
        std::int64_t b = 0;
        for (; b + 32 <= format.row_bytes; b += 32) {
            const auto* from = reinterpret_cast<const __m256i*>(row + b);
            store_256<kStreaming>(out + b, _mm256_loadu_si256(from));
        }
        std::memcpy(out + b, row + b, static_cast<std::size_t>(format.row_bytes - b));
    }
};

struct Avx2Set {
    template <Encoding kEncoding, Output kOutput, bool kStreaming>
    using Row = WideRow<Load<kEncoding>, Store<kOutput, kStreaming>>;
    template <bool kStreaming>
    using CopiedRow = CopiedWideRow<kStreaming>;
};

}  // namespace

DecodeKernel avx2_decode_kernel(Encoding encoding, Output output, bool streaming) noexcept {
    return streaming ? kernel_of<Avx2Set, true>(encoding, output)
                     : kernel_of<Avx2Set, false>(encoding, output);
}

}  // namespace gramary
#endif
