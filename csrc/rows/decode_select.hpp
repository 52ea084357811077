#pragma once
#include "rows/decode.hpp"
#include "rows/decode_loop.hpp"

// The choice among one instruction set's kernels; internal linkage, as in decode_loop.hpp.

namespace gramary {
namespace {

// A set is a type with Row<encoding, output, streaming>, rows that are converted, and
// CopiedRow<streaming>, bytes as they are.
template <class Set, Encoding kEncoding, bool kStreaming>
DecodeKernel kernel_to(Output output) noexcept {
    switch (output) {
        case Output::bf16:
            return decode_rows<typename Set::template Row<kEncoding, Output::bf16, kStreaming>>;
        case Output::fp16:
            return decode_rows<typename Set::template Row<kEncoding, Output::fp16, kStreaming>>;
        default:
            return decode_rows<typename Set::template Row<kEncoding, Output::fp32, kStreaming>>;
    }
}

template <class Set, bool kStreaming>
DecodeKernel kernel_of(Encoding encoding, Output output) noexcept {
    // Plain rows in their own dtype are copied too; the two enumerations agree on those.
    if (output == Output::encoded || static_cast<int>(encoding) == static_cast<int>(output)) {
        return decode_rows<typename Set::template CopiedRow<kStreaming>>;
    }
    switch (encoding) {
        case Encoding::bf16:
            return kernel_to<Set, Encoding::bf16, kStreaming>(output);
        case Encoding::fp16:
            return kernel_to<Set, Encoding::fp16, kStreaming>(output);
        case Encoding::fp32:
            return kernel_to<Set, Encoding::fp32, kStreaming>(output);
        case Encoding::fp8:
            return kernel_to<Set, Encoding::fp8, kStreaming>(output);
        default:
            return kernel_to<Set, Encoding::nvfp4, kStreaming>(output);
    }
}

}  // namespace
}  // namespace gramary
