#include "memory/mapping.hpp"

#include <sys/mman.h>

#include <atomic>

namespace gramary {
namespace {
std::atomic<bool> keeps_all{false};
}

Mapping::~Mapping() {
    if (!keeps_all.load()) munmap(data_, num_bytes_);
}

void Mapping::keep_all() noexcept { keeps_all = true; }

}  // namespace gramary
