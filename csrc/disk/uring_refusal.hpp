#pragma once
#include <cerrno>
#include <cstring>
#include <string>

#include "disk/descriptor_shortage.hpp"

namespace gramary {

// Why the kernel does not let rows be read through io_uring: the call that failed, and its errno.
struct UringRefusal {
    const char* what = "";
    int error = 0;  // 0: it was not refused

    std::string describe() const {
        std::string words = std::string(what) + ": " + std::strerror(error);
        if (is_descriptor_shortage(error)) words += ", " + describe_descriptor_limit(error);
        return words;
    }
    // Whether the same call may well succeed later: what was met is a limit, or a shortage.
    bool may_pass() const noexcept {
        return error == ENOMEM || error == EMFILE || error == ENFILE || error == EAGAIN ||
               error == EBUSY;
    }
};

}  // namespace gramary
