#include "rows/row_codec.hpp"

#include "rows/number_formats.hpp"

namespace gramary {
namespace {

std::int64_t row_bytes_of(Encoding encoding, std::int64_t row_dim) noexcept {
    switch (encoding) {
        case Encoding::bf16:
        case Encoding::fp16:
            return 2 * row_dim;
        case Encoding::fp32:
            return 4 * row_dim;
        case Encoding::fp8:
            return row_dim;
        case Encoding::nvfp4:
            return row_dim / 2 + row_dim / kNvfp4Block;
    }
    return 0;
}

}  // namespace

std::int64_t output_bytes(const RowFormat& format, Output output) noexcept {
    switch (output) {
        case Output::bf16:
        case Output::fp16:
            return 2 * format.row_dim;
        case Output::fp32:
            return 4 * format.row_dim;
        case Output::encoded:
            return format.row_bytes;
    }
    return 0;
}

RowCodec::RowCodec(Encoding encoding, std::int64_t row_dim, float scale)
    : zero_row_(static_cast<std::size_t>(row_bytes_of(encoding, row_dim)), 0) {
    for (int code = 0; code < 256; ++code) {
        const float value = float_of_e4m3(static_cast<std::uint8_t>(code));
        e4m3_values_.push_back(value);
        fp8_as_fp32_.push_back(value * scale);
        fp8_as_bf16_.push_back(bf16_of_float(value * scale));
        fp8_as_fp16_.push_back(fp16_of_float(value * scale));
    }
    format_ = {encoding,
               row_dim,
               row_bytes_of(encoding, row_dim),
               scale,
               fp8_as_bf16_.data(),
               fp8_as_fp16_.data(),
               fp8_as_fp32_.data(),
               e4m3_values_.data()};
}

}  // namespace gramary
