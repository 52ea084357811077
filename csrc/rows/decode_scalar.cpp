#include <cstring>

#include "base/cpu_features.hpp"
#include "rows/decode.hpp"
#include "rows/decode_loop.hpp"
#include "rows/decode_select.hpp"
#include "rows/number_formats.hpp"

namespace gramary {
namespace {

template <class T>
T read(const std::uint8_t* from, std::int64_t index) {
    T value;
    std::memcpy(&value, from + index * sizeof(T), sizeof(T));
    return value;
}

// One value of a row, before the rounding to the output.
template <Encoding kEncoding>
float value_at(const RowFormat& format, const std::uint8_t* row, std::int64_t column) {
    if constexpr (kEncoding == Encoding::bf16) {
        return float_of_bf16(read<std::uint16_t>(row, column));
    } else if constexpr (kEncoding == Encoding::fp16) {
        return float_of_fp16(read<std::uint16_t>(row, column));
    } else if constexpr (kEncoding == Encoding::fp32) {
        return read<float>(row, column);
    } else if constexpr (kEncoding == Encoding::fp8) {
        return format.fp8_as_fp32[row[column]];
    } else {
        const std::uint8_t code = (row[column / 2] >> (column % 2 * 4)) & 0xF;
        const std::uint8_t block_scale = row[format.row_dim / 2 + column / kNvfp4Block];
        return float_of_e2m1(code) * format.e4m3_values[block_scale] * format.scale;
    }
}

template <Output kOutput>
auto rounded(float value) {
    if constexpr (kOutput == Output::bf16) {
        return bf16_of_float(value);
    } else if constexpr (kOutput == Output::fp16) {
        return fp16_of_float(value);
    } else {
        return value;
    }
}

template <Encoding kEncoding, Output kOutput>
struct ScalarRow {
    static std::int64_t out_bytes(const RowFormat& format) { return output_bytes(format, kOutput); }

    static void decode(const RowFormat& format, const std::uint8_t* row, std::uint8_t* out) {
        for (std::int64_t column = 0; column < format.row_dim; ++column) {
            const auto value = rounded<kOutput>(value_at<kEncoding>(format, row, column));
            std::memcpy(out + column * sizeof(value), &value, sizeof(value));
        }
    }
};

// fp8 to 16 bits by the table of all codes.
template <Output kOutput>
struct ScalarRow<Encoding::fp8, kOutput> {
    static std::int64_t out_bytes(const RowFormat& format) { return output_bytes(format, kOutput); }

    static void decode(const RowFormat& format, const std::uint8_t* row, std::uint8_t* out) {
        for (std::int64_t column = 0; column < format.row_dim; ++column) {
            const auto value = table(format)[row[column]];
            std::memcpy(out + column * sizeof(value), &value, sizeof(value));
        }
    }

    static auto table(const RowFormat& format) {
        if constexpr (kOutput == Output::bf16) {
            return format.fp8_as_bf16;
        } else if constexpr (kOutput == Output::fp16) {
            return format.fp8_as_fp16;
        } else {
            return format.fp8_as_fp32;
        }
    }
};

// Bytes as they are: encoded rows, and plain rows in their own dtype.
struct CopiedScalarRow {
    static std::int64_t out_bytes(const RowFormat& format) { return format.row_bytes; }

    static void decode(const RowFormat& format, const std::uint8_t* row, std::uint8_t* out) {
        std::memcpy(out, row, static_cast<std::size_t>(format.row_bytes));
    }
};

struct ScalarSet {
    template <Encoding kEncoding, Output kOutput, bool kStreaming>
    using Row = ScalarRow<kEncoding, kOutput>;
    template <bool kStreaming>
    using CopiedRow = CopiedScalarRow;
};

}  // namespace

DecodeKernel scalar_decode_kernel(Encoding encoding, Output output) noexcept {
    return kernel_of<ScalarSet, false>(encoding, output);
}

DecodeKernel decode_kernel(const RowFormat& format, Output output, bool streaming) noexcept {
#if defined(__x86_64__)
    if (simd_level() >= SimdLevel::avx512) {
        return avx512_decode_kernel(format.encoding, output, streaming);
    }
    if (simd_level() >= SimdLevel::avx2) {
        return avx2_decode_kernel(format.encoding, output, streaming);
    }
#endif
    (void)streaming;
    return scalar_decode_kernel(format.encoding, output);
}

}  // namespace gramary
