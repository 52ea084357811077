#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/mapping.hpp"

namespace gramary {

// Memory of a file that somebody else made, mapped through its descriptor.
//
// Life: the constructor maps (throwing std::system_error, and with nothing left behind, where it
// cannot), close() or the destructor lets go. The descriptor stays the caller's.
// The file must not be made shorter: reading what lies beyond its end kills the process.
class FileMapping {
 public:
    // 0 < num_bytes, and no more than the file has.
    FileMapping(int descriptor, std::size_t num_bytes, bool is_writable);

    // Lets go early; a second call does nothing.
    void close() noexcept { mapping_.reset(); }

    std::uintptr_t address() const noexcept {
        return mapping_ ? reinterpret_cast<std::uintptr_t>(mapping_->data()) : 0;
    }
    Hold hold() const noexcept { return {mapping_}; }

 private:
    std::shared_ptr<Mapping> mapping_;
};

}  // namespace gramary
