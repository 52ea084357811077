#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "expect.hpp"
#include "rows.hpp"
#include "scenarios.hpp"

namespace gramary::threads {
namespace {

constexpr std::int64_t kNumBlocks = 6000;
constexpr std::int64_t kNumRows = kNumBlocks * kRowsPerBlock;

// Small batches, and large ones of more distinct blocks than the reader sends through the cache.
void read_batch(DiskReader& reader, std::mt19937_64& random, std::size_t count, bool may_fail) {
    std::vector<std::int64_t> ids(count);
    for (auto& id : ids) id = static_cast<std::int64_t>(random() % kNumRows);
    std::vector<std::uint8_t> rows(count * kRowBytes);
    const auto failure = reader.read(ids, rows.data());
    if (failure) {
        EXPECT(may_fail && failure->kind == ReadFailure::Kind::replaced);
        return;
    }
    for (std::size_t i = 0; i < count; ++i) EXPECT(is_row(ids[i], &rows[i * kRowBytes]));
}

// Changes attributes, which is no reason to stop, and looks at the files meanwhile.
void change_mode(DiskReader& reader, const RowFile& file, const std::atomic<bool>& is_over) {
    for (int i = 0; !is_over; ++i) {
        EXPECT(::chmod(file.path().c_str(), i % 2 ? 0600 : 0640) == 0);
        reader.watch().has_changes();
        reader.watch().find_changed();
        reader.notes();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

// Several threads read at once, and `other` runs beside them.
template <class Other>
void read_beside(DiskReader& reader, bool may_fail, int num_batches, const Other& other) {
    std::vector<std::thread> readers;
    for (unsigned seed = 0; seed < 3; ++seed) {
        readers.emplace_back([&reader, may_fail, num_batches, seed] {
            std::mt19937_64 random(seed);
            for (int batch = 0; batch < num_batches; ++batch) {
                read_batch(reader, random, batch % 8 == 7 ? 12000 : 200, may_fail);
            }
        });
    }
    std::atomic<bool> is_over{false};
    std::thread beside([&] { other(is_over); });
    for (std::thread& one : readers) one.join();
    is_over = true;
    beside.join();
}

void try_reader(const std::string& name, bool has_checksums) {
    const RowFile file(kNumRows);
    DiskReader reader = file.open(name, has_checksums);
    std::printf("disk: %s, %s\n", reader.backend_name(), has_checksums ? "checked" : "unchecked");
    file.cool();
    // Attributes are told from writes by the kernel's notes, which not every file system has.
    read_beside(reader, !has_checksums, 24, [&](const std::atomic<bool>& is_over) {
        if (has_checksums) {
            while (!is_over) {
                file.cool();
                reader.watch().has_changes();
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
            }
        } else {
            change_mode(reader, file, is_over);
        }
    });
    read_beside(reader, true, 16, [&](const std::atomic<bool>&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        file.rewrite();
    });
    EXPECT(reader.watch().find_changed() == 0);
}

}  // namespace

void try_disk() {
    for (const char* name : {"auto", "pread"}) {
        try_reader(name, false);
        try_reader(name, true);
    }
    try_reader("mmap", true);
}

}  // namespace gramary::threads
