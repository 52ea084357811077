#include "disk/bind.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <tuple>

#include "base/path_text.hpp"
#include "base/unlocked.hpp"
#include "disk/disk_reader.hpp"
#include "disk/pack_blocks.hpp"
#include "disk/raw_reader.hpp"
#include "disk/uring_trial.hpp"
#include "disk/xxh64.hpp"
#include "memory/hold_capsule.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace gramary {
namespace {

// Raises gramary.errors.RowReadError.
[[noreturn]] void raise_read_error(const std::string& what, const std::string& path,
                                   std::int64_t offset, int error) {
    nb::object type = nb::module_::import_("gramary.errors").attr("RowReadError");
    nb::object value = type(what, nb::arg("file") = PathText{path}, nb::arg("offset") = offset,
                            nb::arg("errno") = error);
    PyErr_SetObject(type.ptr(), value.ptr());
    throw nb::python_error();
}

// Raises gramary.errors.ChecksumError.
[[noreturn]] void raise_checksum_error(const std::string& path, std::int64_t offset,
                                       const ReadFailure& failure) {
    char digests[96];
    std::snprintf(digests, sizeof digests, "stored checksum %016llx, computed %016llx",
                  static_cast<unsigned long long>(failure.stored),
                  static_cast<unsigned long long>(failure.computed));
    nb::object type = nb::module_::import_("gramary.errors").attr("ChecksumError");
    nb::object value =
        type(PathText{path + ": the block at byte " + std::to_string(offset) +
                      " was altered: " + digests + "; run `gramary verify` and rebuild it"});
    PyErr_SetObject(type.ptr(), value.ptr());
    throw nb::python_error();
}

// A reader with the paths that its errors name.
struct BoundReader {
    std::vector<std::string> paths;
    std::shared_ptr<DiskReader> reader;
};

template <class Record>
std::vector<Record> copy_records(std::uintptr_t pointer, std::int64_t count) {
    std::vector<Record> records(static_cast<std::size_t>(count));
    if (count > 0) {
        std::memcpy(records.data(), reinterpret_cast<const void*>(pointer),
                    records.size() * sizeof(Record));
    }
    return records;
}

std::int64_t number(nb::handle record, const char* name) {
    return nb::cast<std::int64_t>(record.attr(name));
}

FileIdentity file_from(nb::handle file) {
    const auto [device, inode, mtime_ns] =
        nb::cast<std::tuple<std::int64_t, std::int64_t, std::int64_t>>(file.attr("identity"));
    return {.path = nb::cast<PathText>(file.attr("path")).bytes,
            .bytes = number(file, "size"),
            .device = device,
            .inode = inode,
            .mtime_ns = mtime_ns,
            .ctime_ns = number(file, "changed_ns")};
}

RowPart part_from(nb::handle part) {
    return {.file = number(part, "file"),
            .offset = number(part, "offset"),
            .width = number(part, "width"),
            .column = number(part, "column"),
            .rows_per_block = number(part, "rows_per_block"),
            .block_bytes = number(part, "block_bytes"),
            .stride = number(part, "stride")};
}

// layout: a RowLayout of src/gramary/files/layout.py.
void open_reader(BoundReader* self, nb::handle layout, const std::string& reader, bool direct_io,
                 int num_threads, std::int64_t mmap_budget_bytes) {
    std::vector<std::string> paths;
    std::vector<FileIdentity> files;
    std::vector<std::int64_t> file_bytes;
    for (nb::handle file : layout.attr("files")) {
        files.push_back(file_from(file));
        paths.push_back(files.back().path);
        file_bytes.push_back(files.back().bytes);
    }
    std::vector<RowRun> runs;
    std::vector<RowPart> parts;
    std::int64_t block_bytes = 0;
    for (nb::handle run : layout.attr("runs")) {
        const auto first_part = static_cast<std::int64_t>(parts.size());
        for (nb::handle part : run.attr("parts")) {
            parts.push_back(part_from(part));
            block_bytes = std::max(block_bytes, parts.back().block_bytes);
        }
        runs.push_back({.first_row = number(run, "first_row"),
                        .num_rows = number(run, "num_rows"),
                        .first_part = first_part,
                        .num_parts = static_cast<std::int64_t>(parts.size()) - first_part});
    }
    const bool is_checked = nb::cast<bool>(layout.attr("block_checksums"));
    const BlockChecks checks{static_cast<std::uint32_t>(is_checked ? block_bytes : 0),
                             nb::cast<std::uint64_t>(layout.attr("checksum_seed"))};
    RowMap map(std::move(runs), std::move(parts), file_bytes, number(layout, "row_bytes"));
    try {
        auto opened = std::make_shared<DiskReader>(
            std::move(map), std::move(files), checks,
            DiskOptions{reader, direct_io, num_threads, mmap_budget_bytes});
        new (self) BoundReader{std::move(paths), std::move(opened)};
    } catch (const DiskReader::Unsupported& refusal) {
        nb::object type = nb::module_::import_("gramary.errors").attr("UnsupportedError");
        PyErr_SetString(type.ptr(), refusal.what());
        throw nb::python_error();
    } catch (const FileSet::OpenFailure& failure) {
        raise_read_error(failure.what, paths[static_cast<std::size_t>(failure.file)], 0,
                         failure.error);
    }
}

void read_rows(BoundReader& self, std::uintptr_t row_ids, std::int64_t count, std::uintptr_t out,
               std::uintptr_t places) {
    const auto* ids = reinterpret_cast<const std::int64_t*>(row_ids);
    const std::int64_t* const foreign = std::find_if(ids, ids + count, [&](std::int64_t id) {
        return id < 0 || id >= self.reader->map().num_rows();
    });
    if (foreign != ids + count) {
        throw nb::index_error(("row_ids[" + std::to_string(foreign - ids) + "]: expected 0 to " +
                               std::to_string(self.reader->map().num_rows() - 1) + ", got " +
                               std::to_string(*foreign))
                                  .c_str());
    }
    std::optional<ReadFailure> failure;
    {
        Unlocked released;
        failure = self.reader->read({ids, static_cast<std::size_t>(count)},
                                    reinterpret_cast<std::uint8_t*>(out),
                                    {reinterpret_cast<const std::int64_t*>(places),
                                     static_cast<std::size_t>(places == 0 ? 0 : count)});
    }
    if (!failure) return;
    const std::string& path = self.paths[static_cast<std::size_t>(file_of(failure->address))];
    if (failure->kind == ReadFailure::Kind::checksum) {
        raise_checksum_error(path, offset_of(failure->address), *failure);
    }
    const bool is_replaced = failure->kind == ReadFailure::Kind::replaced;
    raise_read_error(is_replaced
                         ? "the file was replaced or written to while it was open; open the "
                           "table again"
                         : "cannot read rows",
                     path, offset_of(failure->address), failure->error);
}

nb::dict stats_of(const BoundReader& self) {
    const DiskStats& stats = self.reader->stats();
    nb::dict snapshot;
    const auto put = [&](const char* name, const DiskStats::Counter& counter) {
        snapshot[name] = counter.load(std::memory_order_relaxed);
    };
    put("num_batches", stats.num_batches);
    put("num_rows", stats.num_rows);
    put("num_distinct_rows", stats.num_distinct_rows);
    put("num_blocks", stats.num_blocks);
    put("row_bytes", stats.row_bytes);
    put("read_bytes", stats.read_bytes);
    put("num_cached_reads", stats.num_cached_reads);
    put("num_backend_reads", stats.num_backend_reads);
    put("num_direct_reads", stats.num_direct_reads);
    put("num_retries", stats.num_retries);
    put("num_failures", stats.num_failures);
    put("max_in_flight", stats.max_in_flight);
    put("planning_ns", stats.planning_ns);
    put("cached_ns", stats.cached_ns);
    put("reading_ns", stats.reading_ns);
    put("submitting_ns", stats.submitting_ns);
    put("waiting_ns", stats.waiting_ns);
    put("scattering_ns", stats.scattering_ns);
    return snapshot;
}

}  // namespace

void bind_disk(nb::module_& m) {
    m.def(
        "xxh64",
        [](std::uintptr_t data, std::size_t size, std::uint64_t seed) {
            return xxh64(reinterpret_cast<const void*>(data), size, seed);
        },
        nb::call_guard<Unlocked>());
    m.def("try_io_uring", [](const PathText& path) {
        const UringTrial trial = try_io_uring(path.bytes);
        return nb::make_tuple(trial.error, trial.told);
    });
    m.def("lane_shape", [] {
        const QueueShape shape = lane_shape();
        return nb::make_tuple(shape.num_threads, shape.depth);
    });
    m.def(
        "read_blocks_raw",
        [](const PathText& path, std::uintptr_t offsets, std::size_t count,
           std::uint32_t block_bytes, int num_threads, int depth) {
            return read_blocks_raw(path.bytes,
                                   {reinterpret_cast<const std::int64_t*>(offsets), count},
                                   block_bytes, {num_threads, depth});
        },
        nb::call_guard<Unlocked>());
    m.def(
        "read_rows_raw",
        [](const PathText& path, std::uintptr_t offsets, std::size_t count, std::uint32_t row_bytes,
           std::uintptr_t out) {
            return read_rows_raw(path.bytes,
                                 {reinterpret_cast<const std::int64_t*>(offsets), count}, row_bytes,
                                 reinterpret_cast<std::uint8_t*>(out));
        },
        nb::call_guard<Unlocked>());
    m.def(
        "pack_blocks",
        [](std::int64_t row_bytes, std::int64_t rows_per_block, std::int64_t block_bytes,
           std::uint64_t seed, std::uintptr_t rows, std::int64_t num_rows, std::int64_t first_block,
           std::uintptr_t blocks) {
            pack_blocks({row_bytes, rows_per_block, block_bytes, seed},
                        reinterpret_cast<const std::uint8_t*>(rows), num_rows, first_block,
                        reinterpret_cast<std::uint8_t*>(blocks));
        },
        nb::call_guard<Unlocked>());
    m.def(
        "find_bad_block",
        [](std::int64_t block_bytes, std::uint64_t seed, std::uintptr_t blocks,
           std::int64_t num_blocks, std::int64_t first_block) {
            return find_bad_block({0, 0, block_bytes, seed},
                                  reinterpret_cast<const std::uint8_t*>(blocks), num_blocks,
                                  first_block);
        },
        nb::call_guard<Unlocked>());
    nb::class_<BoundReader>(m, "DiskReader")
        .def("__init__", &open_reader, "layout"_a, nb::kw_only(), "reader"_a, "direct_io"_a,
             "num_threads"_a, "mmap_budget_bytes"_a)
        // Row i goes to row i, or to row places[i] where `places` is not 0.
        .def("read", &read_rows, nb::arg("row_ids"), nb::arg("count"), nb::arg("out"),
             nb::arg("places") = 0)
        .def("stats", &stats_of)
        // For the row service, which reads without Python and holds the reader meanwhile.
        .def("address",
             [](const BoundReader& self) {
                 return reinterpret_cast<std::uintptr_t>(self.reader.get());
             })
        .def("hold", [](const BoundReader& self) { return capsule_of({self.reader}); })
        .def("backend_name", [](const BoundReader& self) { return self.reader->backend_name(); })
        .def("direct_alignment",
             [](const BoundReader& self) { return self.reader->files().direct_alignment(); })
        .def("find_changed",
             [](const BoundReader& self) { return self.reader->watch().find_changed(); })
        .def("set_script",
             [](BoundReader& self, std::uintptr_t faults, std::int64_t count) {
                 self.reader->set_script(copy_records<ScriptedFault>(faults, count));
             })
        .def("notes", [](const BoundReader& self) {
            std::vector<PathText> notes;
            for (std::string& note : self.reader->notes()) notes.push_back({std::move(note)});
            return notes;
        });
}

}  // namespace gramary
