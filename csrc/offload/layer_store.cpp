#include "offload/layer_store.hpp"

#include <algorithm>

#include "base/first_index.hpp"
#include "rows/row_places.hpp"

namespace gramary::offload {
namespace {

// Rows a thread takes at a time, as in rows/row_lookup.cpp.
constexpr std::int64_t kGrainRows = 512;

}  // namespace

LayerStore::LayerStore(NgramHasher hasher, std::int64_t num_table_rows, std::int64_t row_bytes,
                       RowExtent host, DiskExtent disk, bool is_sent_on)
    : hasher_(std::move(hasher)),
      num_table_rows_(num_table_rows),
      row_bytes_(row_bytes),
      bytes_(std::make_unique<RowCodec>(Encoding::fp8, row_bytes, 1.0f)),
      host_(host),
      disk_(disk),
      is_sent_on_(is_sent_on) {}

std::optional<StoreFailure> LayerStore::hash(const FlatBatch& batch, std::int64_t* ids,
                                             Pool& pool) const {
    const BatchFault fault = hasher_.hash_batch(batch, ids, pool);
    if (!fault) return std::nullopt;
    return StoreFailure{Failure::token, fault.kind, -1, fault.index};
}

std::optional<StoreFailure> LayerStore::gather(std::span<const std::int64_t> ids, std::uint8_t* out,
                                               Pool& pool, GatherScratch& scratch) const {
    const auto count = static_cast<std::int64_t>(ids.size());
    std::int64_t num_on_disk = 0;
    if (has_disk_rows()) {
        if (scratch.ids.size() < ids.size()) {
            scratch.ids.resize(ids.size());
            scratch.places.resize(ids.size());
        }
        num_on_disk =
            find_places(ids.data(), count, disk_.first_row, disk_.first_row + disk_.num_rows,
                        scratch.places.data(), scratch.ids.data());
    }
    if (num_on_disk < count) {
        lookup_rows(*bytes_, host_, kAnyRowId, ids.data(), count, Output::encoded, out, pool,
                    is_sent_on_);
    }
    if (num_on_disk == 0) return std::nullopt;
    const auto size = static_cast<std::size_t>(num_on_disk);
    const auto failure = disk_.reader->read(std::span(scratch.ids).first(size), out,
                                            std::span(scratch.places).first(size));
    if (!failure) return std::nullopt;
    const bool is_checksum = failure->kind == ReadFailure::Kind::checksum;
    return StoreFailure{is_checksum ? Failure::checksum : Failure::read, failure->error,
                        static_cast<std::int32_t>(file_of(failure->address)),
                        offset_of(failure->address)};
}

std::optional<StoreFailure> LayerStore::gather_written(std::span<const std::int64_t> written,
                                                       std::uint8_t* out, Pool& pool,
                                                       GatherScratch& scratch) const {
    std::int64_t wrong = -1;
    if (has_disk_rows()) {
        scratch.taken.assign(written.begin(), written.end());
        wrong = first_wrong_row_id(
            scratch.taken.data(), static_cast<std::int64_t>(scratch.taken.size()), num_table_rows_);
        if (wrong < 0) return gather(scratch.taken, out, pool, scratch);
    } else {
        wrong = copy_written(written, out, pool);
    }
    if (wrong < 0) return std::nullopt;
    return StoreFailure{Failure::row_id, 0, -1, wrong};
}

std::int64_t LayerStore::copy_written(std::span<const std::int64_t> written, std::uint8_t* out,
                                      Pool& pool) const {
    // In one cache line, and named by one pointer: see HotPool::Job.
    struct alignas(64) Copy {
        const LayerStore& store;
        const std::int64_t* written;
        std::uint8_t* out;
        FirstIndex first_wrong;
    } copy{*this, written.data(), out, {}};
    pool.parallel_for(static_cast<std::int64_t>(written.size()), kGrainRows,
                      [&copy](std::int64_t begin, std::int64_t end) {
                          const std::int64_t wrong =
                              copy.store.copy_piece(copy.written, begin, end, copy.out);
                          if (wrong >= 0) copy.first_wrong.note(wrong);
                      });
    return copy.first_wrong.get();
}

std::int64_t LayerStore::copy_piece(const std::int64_t* written, std::int64_t begin,
                                    std::int64_t end, std::uint8_t* out) const {
    std::int64_t ids[kGrainRows];
    SerialPool serial;
    for (std::int64_t first = begin; first < end; first += kGrainRows) {
        const std::int64_t count = std::min(kGrainRows, end - first);
        std::copy_n(written + first, count, ids);
        const std::int64_t wrong =
            lookup_rows(*bytes_, host_, num_table_rows_, ids, count, Output::encoded,
                        out + first * row_bytes_, serial, is_sent_on_);
        if (wrong >= 0) return first + wrong;
    }
    return -1;
}

}  // namespace gramary::offload
