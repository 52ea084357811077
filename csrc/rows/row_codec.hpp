#pragma once
#include <cstdint>
#include <vector>

namespace gramary {

enum class Encoding : int { bf16 = 0, fp16 = 1, fp32 = 2, fp8 = 3, nvfp4 = 4 };

// What rows are given as; `encoded` is the bytes as they lie in the table.
enum class Output : int { bf16 = 0, fp16 = 1, fp32 = 2, encoded = 3 };

constexpr std::int64_t kNvfp4Block = 16;

// How rows are encoded, as the kernels read it: numbers and tables of 256 entries only.
//
// fp8 values depend on one byte and the table's scale alone, so that all of them stand in tables,
// computed once by integer arithmetic and one rounding. An nvfp4 row is row_dim/2 bytes of two
// codes, low nibble first, then row_dim/16 block scales in e4m3.
struct RowFormat {
    Encoding encoding;
    std::int64_t row_dim;
    std::int64_t row_bytes;
    float scale;                       // of fp8 and nvfp4
    const std::uint16_t* fp8_as_bf16;  // scaled
    const std::uint16_t* fp8_as_fp16;  // scaled
    const float* fp8_as_fp32;          // scaled
    const float* e4m3_values;          // unscaled
};

// Bytes of one row in an output.
std::int64_t output_bytes(const RowFormat& format, Output output) noexcept;

// Owns a format's tables. Immutable, so that any number of threads may share one.
class RowCodec {
 public:
    RowCodec(Encoding encoding, std::int64_t row_dim, float scale);
    RowCodec(const RowCodec&) = delete;
    RowCodec& operator=(const RowCodec&) = delete;

    const RowFormat& format() const noexcept { return format_; }

    // Encoded zeros: the row that stands for every row that is not here.
    const std::uint8_t* zero_row() const noexcept { return zero_row_.data(); }

 private:
    std::vector<std::uint16_t> fp8_as_bf16_, fp8_as_fp16_;
    std::vector<float> fp8_as_fp32_, e4m3_values_;
    std::vector<std::uint8_t> zero_row_;
    RowFormat format_;
};

}  // namespace gramary
