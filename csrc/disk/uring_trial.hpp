#pragma once
#include <string>

namespace gramary {

// Whether rows could be read through io_uring here, and if not, why.
struct UringTrial {
    int error = 0;     // 0: they could
    std::string told;  // what failed, or what is not granted although they could
};

// Makes a reader's ring for a file, and takes it down.
UringTrial try_io_uring(const std::string& path);

}  // namespace gramary
