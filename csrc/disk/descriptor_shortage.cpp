#include "disk/descriptor_shortage.hpp"

#include <sys/resource.h>

#include <cerrno>

namespace gramary {

bool is_descriptor_shortage(int error) noexcept { return error == EMFILE || error == ENFILE; }

std::string describe_descriptor_limit(int error) {
    if (error == ENFILE) return "this machine has as many files open as it may (fs.file-max)";
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return "the limit of this process (ulimit -n)";
    return "at most " + std::to_string(limit.rlim_cur) + " may be open in this process (ulimit -n)";
}

}  // namespace gramary
