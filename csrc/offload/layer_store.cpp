#include "offload/layer_store.hpp"

#include <algorithm>
#include <atomic>

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

std::optional<StoreFailure> LayerStore::gather(std::span<const std::int64_t> written,
                                               std::uint8_t* out, Pool& pool,
                                               GatherScratch& scratch,
                                               GatheredRows& gathered) const {
    if (has_disk_rows()) return read_mixed(written, out, pool, scratch, gathered);
    const std::int64_t wrong = copy_written(written, out, pool, gathered);
    if (wrong < 0) return std::nullopt;
    return StoreFailure{Failure::row_id, 0, -1, wrong};
}

std::optional<StoreFailure> LayerStore::read_mixed(std::span<const std::int64_t> written,
                                                   std::uint8_t* out, Pool& pool,
                                                   GatherScratch& scratch,
                                                   GatheredRows& gathered) const {
    scratch.make_room(written.size());
    const auto count = static_cast<std::int64_t>(written.size());
    const std::int64_t* const ids = scratch.taken.data();
    copy_out(written.data(), written.size(), scratch.taken.data());
    const std::int64_t wrong = first_wrong_row_id(ids, count, num_table_rows_);
    if (wrong >= 0) return StoreFailure{Failure::row_id, 0, -1, wrong};
    gathered.from_disk = find_places(ids, count, disk_.first_row, disk_.end_row(),
                                     scratch.places.data(), scratch.ids.data());
    if (gathered.from_disk < count) {
        gathered.from_host = count_host_rows(ids, count);
        lookup_rows(*bytes_, host_, kAnyRowId, ids, count, Output::encoded, out, pool, is_sent_on_);
    }
    if (gathered.from_disk == 0) return std::nullopt;
    return read_disk(gathered.from_disk, out, scratch);
}

std::optional<StoreFailure> LayerStore::read_disk(std::int64_t count, std::uint8_t* out,
                                                  GatherScratch& scratch) const {
    const auto size = static_cast<std::size_t>(count);
    const auto failure = disk_.source->read(std::span(scratch.ids).first(size), out,
                                            std::span(scratch.places).first(size));
    if (!failure) return std::nullopt;
    const bool is_checksum = failure->kind == ReadFailure::Kind::checksum;
    return StoreFailure{is_checksum ? Failure::checksum : Failure::read, failure->error,
                        static_cast<std::int32_t>(file_of(failure->address)),
                        offset_of(failure->address)};
}

std::int64_t LayerStore::copy_written(std::span<const std::int64_t> written, std::uint8_t* out,
                                      Pool& pool, GatheredRows& gathered) const {
    // In one cache line, and named by one pointer: see HotPool::Job.
    struct alignas(64) Copy {
        const LayerStore& store;
        const std::int64_t* written;
        std::uint8_t* out;
        FirstIndex first_wrong;
        std::atomic<std::int64_t> num_from_host;
    } copy{*this, written.data(), out, {}, 0};
    pool.parallel_for(static_cast<std::int64_t>(written.size()), kGrainRows,
                      [&copy](std::int64_t begin, std::int64_t end) {
                          std::int64_t num_from_host = 0;
                          const std::int64_t wrong = copy.store.copy_piece(copy.written, begin, end,
                                                                           copy.out, num_from_host);
                          if (wrong >= 0) copy.first_wrong.note(wrong);
                          copy.num_from_host.fetch_add(num_from_host, std::memory_order_relaxed);
                      });
    gathered.from_host = copy.num_from_host.load(std::memory_order_relaxed);
    return copy.first_wrong.get();
}

std::int64_t LayerStore::copy_piece(const std::int64_t* written, std::int64_t begin,
                                    std::int64_t end, std::uint8_t* out,
                                    std::int64_t& num_from_host) const {
    std::int64_t ids[kGrainRows];
    SerialPool serial;
    for (std::int64_t first = begin; first < end; first += kGrainRows) {
        const std::int64_t count = std::min(kGrainRows, end - first);
        copy_out(written + first, static_cast<std::size_t>(count), ids);
        const std::int64_t wrong =
            lookup_rows(*bytes_, host_, num_table_rows_, ids, count, Output::encoded,
                        out + first * row_bytes_, serial, is_sent_on_);
        if (wrong >= 0) return first + wrong;
        num_from_host += count_host_rows(ids, count);
    }
    return -1;
}

std::int64_t LayerStore::count_host_rows(const std::int64_t* ids,
                                         std::int64_t count) const noexcept {
    const auto first_row = static_cast<std::uint64_t>(host_.first_row);
    const auto num_rows = static_cast<std::uint64_t>(host_.num_rows);
    std::int64_t found = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        found +=
            static_cast<std::int64_t>(static_cast<std::uint64_t>(ids[i]) - first_row < num_rows);
    }
    return found;
}

}  // namespace gramary::offload
