#include "memory/file_mapping.hpp"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

namespace gramary {
namespace {

[[noreturn]] void fail(int error, const char* what) {
    throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

FileMapping::FileMapping(int descriptor, std::size_t num_bytes, bool is_writable) {
    struct stat facts;
    if (fstat(descriptor, &facts) != 0) fail(errno, "fstat");
    if (num_bytes == 0 || static_cast<std::size_t>(facts.st_size) < num_bytes) {
        fail(EINVAL, "a mapping that is longer than its file");
    }
    const int access = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void* data = mmap(nullptr, num_bytes, access, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) fail(errno, "mmap");
    mapping_ = std::make_shared<Mapping>(data, num_bytes);
}

}  // namespace gramary
