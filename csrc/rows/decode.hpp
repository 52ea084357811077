#pragma once
#include <cstdint>

#include "rows/row_codec.hpp"

namespace gramary {

// Rows to decode, by address, and where they go.
//
// rows has num_rows + kAhead entries, all of them addresses of encoded rows: while a kernel
// decodes one row it asks for later ones, up to kAhead places further on. Row i goes to out row
// positions[i], or to out row i without positions.
struct DecodeJob {
    static constexpr std::int64_t kAhead = 64;

    const std::uint8_t* const* rows;
    std::int64_t num_rows;
    std::uint8_t* out;
    const std::int64_t* positions;
};

// One kernel an instruction set, encoding and output. Every path gives the same bytes.
using DecodeKernel = void (*)(const RowFormat&, const DecodeJob&);

// The kernel for a format and output. `streaming` asks for stores past the caches, for outputs
// much larger than they are; every row of the output must then lie on a 32-byte boundary.
DecodeKernel decode_kernel(const RowFormat&, Output, bool streaming) noexcept;

DecodeKernel scalar_decode_kernel(Encoding, Output) noexcept;
#if defined(__x86_64__)
DecodeKernel avx2_decode_kernel(Encoding, Output, bool streaming) noexcept;
DecodeKernel avx512_decode_kernel(Encoding, Output, bool streaming) noexcept;
#endif

}  // namespace gramary
