#pragma once
#include <algorithm>
#include <cstdint>

#include "rows/decode.hpp"
#include "rows/row_codec.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace gramary {

// What a whole call shares: where decoded rows go, and with which kernel.
//
// Any number of threads may decode pieces of the same call.
class RowSink {
 public:
    // Rows of one step at most; one token may have as many.
    static constexpr std::int64_t kMaxBlockRows = 1024;
    // Outputs from here on are written past the caches, which they would only sweep.
    static constexpr std::int64_t kStreamingBytes = 8 << 20;

    // is_sent_on says that a device reads the output next: then it is written past the caches
    // however small, since a device's reads of lines that lie dirty in the cores' caches are slow
    // and disturb whatever those cores do by then.
    RowSink(const RowCodec& codec, Output output, std::int64_t count, std::uint8_t* out,
            const std::int64_t* positions = nullptr, bool is_sent_on = false) noexcept
        : codec_(codec),
          bytes_(output_bytes(codec.format(), output)),
          streaming_(positions == nullptr && (is_sent_on || count >= kStreamingBytes / bytes_) &&
                     bytes_ % 32 == 0 && reinterpret_cast<std::uintptr_t>(out) % 32 == 0),
          kernel_(decode_kernel(codec.format(), output, streaming_)),
          out_(out),
          positions_(positions) {}

    // Decodes rows [begin, end). fill(first, count, rows) writes the addresses of some rows and
    // says whether they exist; step bounds how many it is asked for at a time.
    template <class Fill>
    void decode(std::int64_t begin, std::int64_t end, std::int64_t step, const Fill& fill) const {
        constexpr std::int64_t kAhead = DecodeJob::kAhead;
        // Addresses of rows begin .. begin+known-1; those of the last kAhead wait for the next.
        const std::uint8_t* rows[kMaxBlockRows + 2 * kAhead];
        std::int64_t known = 0;
        while (begin < end) {
            const std::int64_t count = std::min(step, end - begin - known);
            if (!fill(begin + known, count, rows + known)) return;
            const bool is_first = known == 0;
            known += count;
            std::int64_t ready = known - kAhead;
            if (begin + known == end) {
                std::fill_n(rows + known, kAhead, codec_.zero_row());
                ready = known;
            }
            if (is_first) prefetch(rows, std::min(known, kAhead));
            if (ready <= 0) continue;
            decode_block(rows, begin, ready);
            std::copy(rows + ready, rows + known, rows);
            begin += ready;
            known -= ready;
        }
#if defined(__x86_64__)
        if (streaming_) _mm_sfence();
#endif
    }

 private:
    void decode_block(const std::uint8_t* const* rows, std::int64_t begin,
                      std::int64_t count) const {
        const bool is_scattered = positions_ != nullptr;
        kernel_(codec_.format(), {rows, count, is_scattered ? out_ : out_ + begin * bytes_,
                                  is_scattered ? positions_ + begin : nullptr});
    }

    // The first rows of a piece, for which no kernel has asked ahead.
    static void prefetch(const std::uint8_t* const* rows, std::int64_t count) noexcept {
        for (std::int64_t i = 0; i < count; ++i) __builtin_prefetch(rows[i], 0, 2);
    }

    const RowCodec& codec_;
    const std::int64_t bytes_;
    const bool streaming_;
    const DecodeKernel kernel_;
    std::uint8_t* const out_;
    const std::int64_t* const positions_;
};

}  // namespace gramary
