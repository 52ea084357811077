#if defined(__x86_64__)
#include <immintrin.h>

#include "rows/decode.hpp"
#include "rows/decode_loop.hpp"
#include "rows/decode_select.hpp"

namespace gramary {
namespace {

inline __m256i load_256(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

template <bool kStreaming>
inline void store_256(std::uint8_t* out, __m256i value) {
    if constexpr (kStreaming) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(out), value);
    } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), value);
    }
}

template <bool kStreaming>
inline void store_512(std::uint8_t* out, __m512i value) {
    store_256<kStreaming>(out, _mm512_castsi512_si256(value));
    store_256<kStreaming>(out + 32, _mm512_extracti64x4_epi64(value, 1));
}

// 16 values of a row as floats, before the rounding to the output.
template <Encoding kEncoding>
struct Load;

template <>
struct Load<Encoding::bf16> {
    static constexpr std::int64_t kBytes = 2;

    static __m512 get(const RowFormat&, const std::uint8_t* row, std::int64_t column) {
        const __m512i bits = _mm512_cvtepu16_epi32(load_256(row + column * kBytes));
        return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    }
};

template <>
struct Load<Encoding::fp16> {
    static constexpr std::int64_t kBytes = 2;

    static __m512 get(const RowFormat&, const std::uint8_t* row, std::int64_t column) {
        return _mm512_cvtph_ps(load_256(row + column * kBytes));
    }
};

template <>
struct Load<Encoding::fp32> {
    static constexpr std::int64_t kBytes = 4;

    static __m512 get(const RowFormat&, const std::uint8_t* row, std::int64_t column) {
        return _mm512_loadu_ps(row + column * kBytes);
    }
};

template <>
struct Load<Encoding::fp8> {
    static constexpr std::int64_t kBytes = 1;

    static __m512 get(const RowFormat& format, const std::uint8_t* row, std::int64_t column) {
        const auto* codes = reinterpret_cast<const __m128i*>(row + column);
        return _mm512_i32gather_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(codes)), format.fp8_as_fp32,
                                   4);
    }
};

template <>
struct Load<Encoding::nvfp4> {
    static constexpr std::int64_t kBytes = 1;  // Never used: rows are whole blocks.

    static __m512 get(const RowFormat& format, const std::uint8_t* row, std::int64_t column) {
        const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                             -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
        const __m128i pairs = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row + column / 2));
        const __m128i nibble = _mm_set1_epi8(0xF);
        const __m128i codes = _mm_unpacklo_epi8(_mm_and_si128(pairs, nibble),
                                                _mm_and_si128(_mm_srli_epi16(pairs, 4), nibble));
        const std::uint8_t block_scale = row[format.row_dim / 2 + column / kNvfp4Block];
        const __m512 scaled =
            _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), values),
                          _mm512_set1_ps(format.e4m3_values[block_scale]));
        return _mm512_mul_ps(scaled, _mm512_set1_ps(format.scale));
    }
};

// 16 floats rounded to the output and written.
template <Output kOutput, bool kStreaming>
struct Store;

template <bool kStreaming>
struct Store<Output::bf16, kStreaming> {
    static constexpr std::int64_t kBytes = 2;

    static void put(std::uint8_t* out, __m512 value) {
        const __m512i bits = _mm512_castps_si512(value);
        const __m512i high = _mm512_srli_epi32(bits, 16);
        const __m512i bias = _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)),
                                              _mm512_set1_epi32(0x7FFF));
        const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
        const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
        const __m512i result = _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40));
        store_256<kStreaming>(out, _mm512_cvtepi32_epi16(result));
    }
};

template <bool kStreaming>
struct Store<Output::fp16, kStreaming> {
    static constexpr std::int64_t kBytes = 2;

    static void put(std::uint8_t* out, __m512 value) {
        store_256<kStreaming>(out, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    }
};

template <bool kStreaming>
struct Store<Output::fp32, kStreaming> {
    static constexpr std::int64_t kBytes = 4;

    static void put(std::uint8_t* out, __m512 value) {
        store_512<kStreaming>(out, _mm512_castps_si512(value));
    }
};

// fp8 to 16 bits, 32 columns at a time: the values of codes 0 to 127 stand in four registers,
// and the sign bit is moved over, as code and value differ in nothing else.
template <Output kOutput, bool kStreaming>
struct Fp8Row {
    static std::int64_t out_bytes(const RowFormat& format) { return format.row_dim * 2; }

    static void decode(const RowFormat& format, const std::uint8_t* row, std::uint8_t* out) {
        const std::uint16_t* table =
            kOutput == Output::bf16 ? format.fp8_as_bf16 : format.fp8_as_fp16;
        const __m512i t0 = _mm512_loadu_si512(table), t1 = _mm512_loadu_si512(table + 32);
        const __m512i t2 = _mm512_loadu_si512(table + 64), t3 = _mm512_loadu_si512(table + 96);
        std::int64_t column = 0;
        for (; column + 32 <= format.row_dim; column += 32) {
            const __m512i codes = _mm512_cvtepu8_epi16(load_256(row + column));
            const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
            const __m512i low = _mm512_permutex2var_epi16(t0, codes, t1);
            const __m512i high = _mm512_permutex2var_epi16(t2, codes, t3);
            const __m512i sign = _mm512_slli_epi16(_mm512_srli_epi16(codes, 7), 15);
            const __m512i value = _mm512_mask_blend_epi16(is_high, low, high);
            store_512<kStreaming>(out + column * 2, _mm512_or_si512(value, sign));
        }
        for (; column < format.row_dim; ++column) {
            std::memcpy(out + column * 2, &table[row[column]], 2);
        }
    }
};

template <bool kStreaming>
struct CopiedWideRow {
    static std::int64_t out_bytes(const RowFormat& format) { return format.row_bytes; }

    static void decode(const RowFormat& format, const std::uint8_t* row, std::uint8_t* out) {
        std::int64_t b = 0;
        for (; b + 32 <= format.row_bytes; b += 32)
            store_256<kStreaming>(out + b, load_256(row + b));
        std::memcpy(out + b, row + b, static_cast<std::size_t>(format.row_bytes - b));
    }
};

template <Encoding kEncoding, Output kOutput, bool kStreaming>
struct RowOf {
    using type = WideRow<Load<kEncoding>, Store<kOutput, kStreaming>>;
};
template <bool kStreaming>
struct RowOf<Encoding::fp8, Output::bf16, kStreaming> {
    using type = Fp8Row<Output::bf16, kStreaming>;
};
template <bool kStreaming>
struct RowOf<Encoding::fp8, Output::fp16, kStreaming> {
    using type = Fp8Row<Output::fp16, kStreaming>;
};

struct Avx512Set {
    template <Encoding kEncoding, Output kOutput, bool kStreaming>
    using Row = typename RowOf<kEncoding, kOutput, kStreaming>::type;
    template <bool kStreaming>
    using CopiedRow = CopiedWideRow<kStreaming>;
};

}  // namespace

DecodeKernel avx512_decode_kernel(Encoding encoding, Output output, bool streaming) noexcept {
    return streaming ? kernel_of<Avx512Set, true>(encoding, output)
                     : kernel_of<Avx512Set, false>(encoding, output);
}

}  // namespace gramary
#endif
