#include "disk/pread_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <memory>

#include "disk/aligned_buffer.hpp"
#include "disk/positioned_read.hpp"

namespace gramary {
namespace {

constexpr std::int64_t kCallerAlone = 2;
constexpr std::int64_t kReadGrain = 4;
constexpr std::int64_t kTakesTurnsFrom = 1024;

void read_range(ReadTask& task, std::int64_t begin, std::int64_t end) {
    thread_local AlignedBuffer buffer;
    for (std::int64_t i = begin; i < end && !task.failed(); ++i) {
        const BlockRead& read = task.reads()[static_cast<std::size_t>(i)];
        std::uint8_t* const place = task.direct() ? nullptr : task.destination(read);
        std::uint8_t* const data = place != nullptr ? place : buffer.reserve(read.length);
        const PositionedRead result =
            read_fully(task.fd_of(read), data, read.length, offset_of(read.address));
        if (result.bytes < read.needed) {
            task.retry(read);
        } else if (place == nullptr) {
            const Arrival arrival{&read, data};
            task.deliver({&arrival, 1});
        }
    }
}

}  // namespace

PreadBackend::PreadBackend(int num_threads) : num_threads_(num_threads), owner_pid_(getpid()) {}

PreadBackend::~PreadBackend() {
    // In a forked child the pool's threads are not there to be joined, nor its locks to be
    // destroyed: they are the parent's, as they stood at the fork.
    if (getpid() != owner_pid_) (void)pool_.release();
}

ThreadPool& PreadBackend::pool() {
    std::call_once(started_, [this] { pool_ = std::make_unique<ThreadPool>(num_threads_); });
    return *pool_;
}

void PreadBackend::run(ReadTask& task) {
    const auto count = static_cast<std::int64_t>(task.reads().size());
    const auto read_share = [&](std::int64_t begin, std::int64_t end) {
        read_range(task, begin, end);
    };
    if (count <= kCallerAlone) return read_share(0, count);
    const std::int64_t spread = count / num_threads_;
    const std::int64_t grain = std::min(std::max<std::int64_t>(spread, 1), kReadGrain);
    if (count > kTakesTurnsFrom) return pool().parallel_for(count, grain, read_share);
    // A few reads do not wait until a large task of another thread gives the pool back.
    if (!pool().try_parallel_for(count, grain, read_share)) read_share(0, count);
}

}  // namespace gramary
