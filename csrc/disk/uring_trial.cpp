#include "disk/uring_trial.hpp"

#include <sys/stat.h>

#include <cerrno>

#include "disk/disk_stats.hpp"
#include "disk/file_set.hpp"
#include "disk/uring_backend.hpp"

namespace gramary {

UringTrial try_io_uring(const std::string& path) try {
    struct stat facts;
    if (::stat(path.c_str(), &facts) != 0) return {errno, path};
    const FileSet files({identify(path, facts)}, false);
    DiskStats stats;
    UringRefusal refusal;
    const auto backend = UringBackend::try_make(files, stats, 1, refusal);
    if (backend == nullptr) return {refusal.error, refusal.describe()};
    return {0, backend->shortcoming()};
} catch (const FileSet::OpenFailure& failure) {
    return {failure.error, path + ": " + failure.what};
}

}  // namespace gramary
