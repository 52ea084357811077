#include "rows/recode.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "base/thread_pool.hpp"
#include "rows/decode.hpp"
#include "rows/encode.hpp"

namespace gramary {
namespace {

// Rows of one piece of work, and rows that are float at a time: few enough for the first cache.
constexpr std::int64_t kGrain = 512;
constexpr std::int64_t kGroup = 8;
constexpr std::uint32_t kInfinity = 0x7F800000;

// Decodes rows that follow each other, a group at a time.
class GroupDecoder {
 public:
    explicit GroupDecoder(const RowFormat& format)
        : format_(format),
          kernel_(decode_kernel(format, Output::fp32, false)),
          addresses_(static_cast<std::size_t>(kGroup + DecodeJob::kAhead)),
          values_(static_cast<std::size_t>(kGroup * format.row_dim)) {}

    const float* decode(const std::uint8_t* rows, std::int64_t num_rows) {
        for (std::int64_t i = 0; i < num_rows + DecodeJob::kAhead; ++i) {
            addresses_[static_cast<std::size_t>(i)] =
                rows + std::min(i, num_rows - 1) * format_.row_bytes;
        }
        kernel_(format_, {addresses_.data(), num_rows,
                          reinterpret_cast<std::uint8_t*>(values_.data()), nullptr});
        return values_.data();
    }

 private:
    const RowFormat& format_;
    DecodeKernel kernel_;
    std::vector<const std::uint8_t*> addresses_;
    std::vector<float> values_;
};

// The bits of the largest magnitude; from kInfinity on a value is not finite.
std::uint32_t largest_bits(const float* values, std::int64_t count) {
    std::uint32_t largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        largest = std::max(largest, bits_of_float(values[i]) & 0x7FFFFFFFu);
    }
    return largest;
}

void encode_bf16(const float* values, const RowFormat& target, std::uint8_t* out) {
    for (std::int64_t i = 0; i < target.row_dim; ++i) {
        const std::uint16_t code = bf16_of_float(values[i]);
        std::memcpy(out + 2 * i, &code, sizeof code);
    }
}

void encode_fp8(const float* values, const RowFormat& target, std::uint8_t* out) {
    for (std::int64_t i = 0; i < target.row_dim; ++i) {
        out[i] = e4m3_of_float(values[i] / target.scale);
    }
}

void encode_nvfp4(const float* values, const RowFormat& target, std::uint8_t* out) {
    std::uint8_t* const block_scales = out + target.row_dim / 2;
    for (std::int64_t block = 0; block < target.row_dim / kNvfp4Block; ++block) {
        const float* const v = values + block * kNvfp4Block;
        const float largest = float_of_bits(largest_bits(v, kNvfp4Block));
        const std::uint8_t block_scale = e4m3_of_float(largest / kE2m1Max / target.scale);
        block_scales[block] = block_scale;
        const float step = target.e4m3_values[block_scale] * target.scale;
        std::uint8_t codes[kNvfp4Block] = {};
        // A block whose scale rounds to zero is all zeros, whatever its codes.
        if (step > 0) {
            for (std::int64_t i = 0; i < kNvfp4Block; ++i) codes[i] = e2m1_of_float(v[i] / step);
        }
        for (std::int64_t i = 0; i < kNvfp4Block / 2; ++i) {
            out[block * kNvfp4Block / 2 + i] =
                static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
        }
    }
}

using EncodeRow = void (*)(const float*, const RowFormat&, std::uint8_t*);

EncodeRow encoder_of(Encoding target) {
    switch (target) {
        case Encoding::bf16:
            return encode_bf16;
        case Encoding::fp8:
            return encode_fp8;
        case Encoding::nvfp4:
            return encode_nvfp4;
        default:
            throw std::invalid_argument("rows are encoded as bf16, fp8 or nvfp4 only");
    }
}

void add_error(const float* source, const float* recoded, std::int64_t count,
               RecodeReport& report) {
    // Several sums side by side, so that none waits for the one before.
    constexpr std::int64_t kLanes = 8;
    double squares[kLanes] = {}, source_squares[kLanes] = {};
    float largest[kLanes] = {};
    for (std::int64_t begin = 0; begin < count; begin += kLanes) {
        for (std::int64_t lane = 0; lane < std::min(kLanes, count - begin); ++lane) {
            const float value = source[begin + lane];
            const float difference = recoded[begin + lane] - value;
            largest[lane] = std::max(largest[lane], std::fabs(difference));
            squares[lane] += static_cast<double>(difference) * difference;
            source_squares[lane] += static_cast<double>(value) * value;
        }
    }
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        report.max_abs = std::max(report.max_abs, largest[lane]);
        report.sum_squares += squares[lane];
        report.sum_source_squares += source_squares[lane];
    }
}

// Calls work(begin, end, index of the piece) for pieces that cover all rows.
template <class Work>
void share_rows(std::int64_t num_rows, const Work& work) {
    const std::int64_t num_pieces = (num_rows + kGrain - 1) / kGrain;
    ThreadPool::shared().parallel_for(num_pieces, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t piece = first; piece < last; ++piece) {
            work(piece * kGrain, std::min((piece + 1) * kGrain, num_rows), piece);
        }
    });
}

}  // namespace

RecodeReport recode_rows(const RowFormat& source, const RowFormat& target, const std::uint8_t* rows,
                         std::int64_t num_rows, std::uint8_t* out) {
    const EncodeRow encode = encoder_of(target.encoding);
    const bool needs_finite = target.encoding != Encoding::bf16;
    std::vector<RecodeReport> reports(static_cast<std::size_t>((num_rows + kGrain - 1) / kGrain));
    share_rows(num_rows, [&](std::int64_t begin, std::int64_t end, std::int64_t piece) {
        GroupDecoder decoder(source), checker(target);
        RecodeReport& report = reports[static_cast<std::size_t>(piece)];
        for (std::int64_t first = begin; first < end; first += kGroup) {
            const std::int64_t count = std::min(kGroup, end - first);
            const float* const values = decoder.decode(rows + first * source.row_bytes, count);
            std::uint8_t* const encoded = out + first * target.row_bytes;
            for (std::int64_t i = 0; i < count; ++i) {
                const float* const row = values + i * source.row_dim;
                if (needs_finite && largest_bits(row, source.row_dim) >= kInfinity) {
                    report.first_not_finite = first + i;
                    return;
                }
                encode(row, target, encoded + i * target.row_bytes);
            }
            add_error(values, checker.decode(encoded, count), count * source.row_dim, report);
        }
    });
    RecodeReport total;
    for (const RecodeReport& report : reports) {
        total.max_abs = std::max(total.max_abs, report.max_abs);
        total.sum_squares += report.sum_squares;
        total.sum_source_squares += report.sum_source_squares;
        if (total.first_not_finite == kNoRow) total.first_not_finite = report.first_not_finite;
    }
    return total;
}

Largest find_largest(const RowFormat& source, const std::uint8_t* rows, std::int64_t num_rows) {
    std::vector<Largest> found(static_cast<std::size_t>((num_rows + kGrain - 1) / kGrain));
    share_rows(num_rows, [&](std::int64_t begin, std::int64_t end, std::int64_t piece) {
        GroupDecoder decoder(source);
        std::uint32_t largest = 0;
        for (std::int64_t first = begin; first < end; first += kGroup) {
            const std::int64_t count = std::min(kGroup, end - first);
            const float* const values = decoder.decode(rows + first * source.row_bytes, count);
            for (std::int64_t i = 0; i < count; ++i) {
                const std::uint32_t bits =
                    largest_bits(values + i * source.row_dim, source.row_dim);
                if (bits >= kInfinity) {
                    found[static_cast<std::size_t>(piece)].first_not_finite = first + i;
                    return;
                }
                largest = std::max(largest, bits);
            }
        }
        found[static_cast<std::size_t>(piece)].magnitude = float_of_bits(largest);
    });
    Largest total;
    for (const Largest& piece : found) {
        total.magnitude = std::max(total.magnitude, piece.magnitude);
        if (total.first_not_finite == kNoRow) total.first_not_finite = piece.first_not_finite;
    }
    return total;
}

}  // namespace gramary
