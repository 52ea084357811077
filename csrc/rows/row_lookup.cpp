#include "rows/row_lookup.hpp"

#include <algorithm>

#include "base/first_index.hpp"
#include "rows/decode.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace gramary {
namespace {

// Rows a thread takes at a time: worth more than waking it.
constexpr std::int64_t kGrainRows = 512;
// Rows whose addresses are worked out before they are decoded; one token may have as many.
constexpr std::int64_t kMaxBlockRows = 1024;
constexpr std::int64_t kBlockRows = 256;
// Outputs from here on are written past the caches, which they would only sweep.
constexpr std::int64_t kStreamingBytes = 8 << 20;

// What a whole call shares: where decoded rows go, and with which kernel.
class RowSink {
 public:
    RowSink(const RowCodec& codec, Output output, std::int64_t count, std::uint8_t* out,
            const std::int64_t* positions = nullptr) noexcept
        : codec_(codec),
          bytes_(output_bytes(codec.format(), output)),
          streaming_(positions == nullptr && count >= kStreamingBytes / bytes_ &&
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

// The address of a row, or of the zero row where the extent does not hold it.
inline const std::uint8_t* address_of(const RowCodec& codec, const RowExtent& extent,
                                      std::int64_t row_id) noexcept {
    const std::uint64_t offset =
        static_cast<std::uint64_t>(row_id) - static_cast<std::uint64_t>(extent.first_row);
    const bool is_here = offset < static_cast<std::uint64_t>(extent.num_rows);
    return is_here ? extent.rows + offset * static_cast<std::uint64_t>(codec.format().row_bytes)
                   : codec.zero_row();
}

}  // namespace

std::int64_t lookup_rows(const RowCodec& codec, const RowExtent& extent,
                         std::int64_t num_table_rows, const std::int64_t* row_ids,
                         std::int64_t count, Output output, std::uint8_t* out, ThreadPool& pool) {
    const RowSink sink(codec, output, count, out);
    const bool is_checked = num_table_rows != kAnyRowId;
    FirstIndex first_wrong;
    const auto fill = [&](std::int64_t first, std::int64_t n, const std::uint8_t** rows) {
        for (std::int64_t i = 0; i < n; ++i) {
            const std::int64_t row_id = row_ids[first + i];
            if (is_checked && (row_id < -1 || row_id >= num_table_rows)) {
                first_wrong.note(first + i);
                return false;
            }
            rows[i] = address_of(codec, extent, row_id);
        }
        return true;
    };
    pool.parallel_for(count, kGrainRows, [&](std::int64_t begin, std::int64_t end) {
        sink.decode(begin, end, kBlockRows, fill);
    });
    return first_wrong.get();
}

BatchFault embed_rows(const NgramHasher& hasher, const RowCodec& codec, const RowExtent& extent,
                      const FlatBatch& batch, Output output, std::uint8_t* out, ThreadPool& pool) {
    if (const BatchFault fault = hasher.check(batch)) return fault;
    const std::int64_t heads = hasher.num_heads();
    const RowSink sink(codec, output, batch.num_tokens * heads, out);
    FirstIndex first_wrong;
    const auto fill = [&](std::int64_t first, std::int64_t n, const std::uint8_t** rows) {
        std::int64_t ids[kMaxBlockRows];
        const std::int64_t wrong =
            hasher.hash_tokens(batch, first / heads, (first + n) / heads, ids);
        if (wrong >= 0) {
            first_wrong.note(wrong);
            return false;
        }
        for (std::int64_t i = 0; i < n; ++i) rows[i] = address_of(codec, extent, ids[i]);
        return true;
    };
    const std::int64_t step = std::max<std::int64_t>(kBlockRows / heads, 1) * heads;
    const std::int64_t grain = std::max<std::int64_t>(kGrainRows / heads, 1);
    pool.parallel_for(batch.num_tokens, grain, [&](std::int64_t begin, std::int64_t end) {
        sink.decode(begin * heads, end * heads, step, fill);
    });
    const std::int64_t wrong = first_wrong.get();
    return wrong < 0 ? BatchFault{} : BatchFault{BatchFault::token, wrong};
}

void decode_rows(const RowCodec& codec, const std::uint8_t* encoded, std::int64_t count,
                 Output output, const std::int64_t* positions, std::uint8_t* out,
                 ThreadPool& pool) {
    const RowSink sink(codec, output, count, out, positions);
    const std::int64_t row_bytes = codec.format().row_bytes;
    const auto fill = [&](std::int64_t first, std::int64_t n, const std::uint8_t** rows) {
        for (std::int64_t i = 0; i < n; ++i) rows[i] = encoded + (first + i) * row_bytes;
        return true;
    };
    pool.parallel_for(count, kGrainRows, [&](std::int64_t begin, std::int64_t end) {
        sink.decode(begin, end, kBlockRows, fill);
    });
}

}  // namespace gramary
