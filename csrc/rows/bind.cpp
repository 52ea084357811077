#include "rows/bind.hpp"

#include <cstdint>
#include <memory>

#include "base/extent_caster.hpp"
#include "base/row_counter.hpp"
#include "base/unlocked.hpp"
#include "memory/hold_capsule.hpp"
#include "rows/recode.hpp"
#include "rows/row_codec.hpp"
#include "rows/row_lookup.hpp"
#include "rows/row_places.hpp"

namespace nb = nanobind;

namespace gramary {
namespace {

struct BoundCounter {
    std::shared_ptr<RowCounter> counter = std::make_shared<RowCounter>();
};

// Addresses arrive as integers; the wrapper has checked what lies behind them.
template <class T>
T* at(std::uintptr_t address) noexcept {
    return reinterpret_cast<T*>(address);
}

std::int64_t lookup(const RowCodec& codec, const RowExtent& extent, std::int64_t num_table_rows,
                    std::uintptr_t row_ids, std::int64_t count, int output, std::uintptr_t out,
                    bool is_sent_on) {
    return lookup_rows(codec, extent, num_table_rows, at<const std::int64_t>(row_ids), count,
                       static_cast<Output>(output), at<std::uint8_t>(out), ThreadPool::shared(),
                       is_sent_on);
}

std::int64_t embed(const RowCodec& codec, const NgramHasher& hasher, const RowExtent& extent,
                   std::uintptr_t token_ids, bool tokens_are_64, std::int64_t num_tokens,
                   std::uintptr_t starts, std::int64_t num_requests, std::uintptr_t history,
                   bool history_is_64, int output, std::uintptr_t out) {
    const FlatBatch batch{{at<const void>(token_ids), tokens_are_64},
                          num_tokens,
                          at<const std::int32_t>(starts),
                          num_requests,
                          {at<const void>(history), history_is_64}};
    const BatchFault fault = embed_rows(hasher, codec, extent, batch, static_cast<Output>(output),
                                        at<std::uint8_t>(out));
    return 4 * fault.index + fault.kind;
}

void decode(const RowCodec& codec, std::uintptr_t encoded, std::int64_t count, int output,
            std::uintptr_t positions, std::uintptr_t out) {
    decode_rows(codec, at<const std::uint8_t>(encoded), count, static_cast<Output>(output),
                at<const std::int64_t>(positions), at<std::uint8_t>(out));
}

nb::tuple recode(const RowCodec& source, const RowCodec& target, std::uintptr_t rows,
                 std::int64_t count, std::uintptr_t out) {
    RecodeReport report;
    {
        Unlocked released;
        report = recode_rows(source.format(), target.format(), at<const std::uint8_t>(rows), count,
                             at<std::uint8_t>(out));
    }
    return nb::make_tuple(report.first_not_finite, report.max_abs, report.sum_squares,
                          report.sum_source_squares);
}

nb::tuple largest(const RowCodec& source, std::uintptr_t rows, std::int64_t count) {
    Largest found;
    {
        Unlocked released;
        found = find_largest(source.format(), at<const std::uint8_t>(rows), count);
    }
    return nb::make_tuple(found.magnitude, found.first_not_finite);
}

}  // namespace

void bind_rows(nb::module_& m) {
    const auto release = nb::call_guard<Unlocked>();
    nb::class_<BoundCounter>(m, "RowCounter")
        .def(nb::init<>())
        .def_prop_ro("address",
                     [](const BoundCounter& self) {
                         return reinterpret_cast<std::uintptr_t>(self.counter.get());
                     })
        .def_prop_ro("num_rows", [](const BoundCounter& self) { return self.counter->num_rows(); })
        .def("add", [](BoundCounter& self, std::int64_t num_rows) { self.counter->add(num_rows); })
        .def("reset", [](BoundCounter& self) { self.counter->reset(); })
        // For the row service, which counts in it without Python and keeps it meanwhile.
        .def("hold", [](const BoundCounter& self) { return capsule_of({self.counter}); });
    nb::class_<RowCodec>(m, "RowCodec")
        .def("__init__",
             [](RowCodec* self, int encoding, std::int64_t row_dim, float scale) {
                 new (self) RowCodec(static_cast<Encoding>(encoding), row_dim, scale);
             })
        .def_prop_ro("row_bytes", [](const RowCodec& codec) { return codec.format().row_bytes; })
        .def("lookup", &lookup, release)
        .def("embed", &embed, release)
        .def("decode", &decode, release)
        .def("recode", &recode)
        .def("largest", &largest);
    m.def(
        "find_places",
        [](std::uintptr_t row_ids, std::int64_t count, std::int64_t first_row, std::int64_t end_row,
           std::uintptr_t places, std::uintptr_t found) {
            return find_places(at<const std::int64_t>(row_ids), count, first_row, end_row,
                               at<std::int64_t>(places), at<std::int64_t>(found));
        },
        release);
    m.def(
        "first_wrong_row_id",
        [](std::uintptr_t row_ids, std::int64_t count, std::int64_t num_table_rows) {
            return first_wrong_row_id(at<const std::int64_t>(row_ids), count, num_table_rows);
        },
        release);
}

}  // namespace gramary
