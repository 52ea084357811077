#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/mapping.hpp"

namespace gramary {

// Zeroed shared memory of this process that other processes can map through its descriptor.
//
// Life: the constructor takes the descriptor and the address range (throwing std::system_error
// and leaving nothing behind where it cannot), populate() takes the pages, the destructor lets go
// of all of it, as close() does; the pages go once nobody holds them. Pages not populated are taken
// when they are first touched. Where the kernel can, the file is sealed: nobody makes it shorter
// under a process that reads it.
//
// Huge pages come in two ways: from the machine's reserved pool (hugetlbfs; every page is one), or
// by asking the kernel to put a huge page behind each aligned piece while populating (works
// whatever the machine's policy for shared memory is; Linux 6.1 or later). With the second way the
// length stays a multiple of the base page: what is not a whole huge page keeps small ones.
//
// Invariant: address() is aligned to the huge page where huge pages were asked for, else to the
// base page; mapped_bytes() is the requested size rounded up to page_bytes().
class HostMapping {
 public:
    enum class Pages { base, transparent, reserved };

    // num_bytes > 0; numa_node < 0 has no preference. huge_page_bytes is needed unless base.
    HostMapping(std::size_t num_bytes, Pages pages, std::size_t huge_page_bytes, int numa_node);
    ~HostMapping();
    HostMapping(const HostMapping&) = delete;
    HostMapping& operator=(const HostMapping&) = delete;

    // Takes every page, on the shared threads; huge ones where that was asked for and succeeds.
    // Throws std::system_error where the machine has no page left.
    void populate();

    // Lets go early; a second call does nothing.
    void close() noexcept;

    // Keeps the pages beyond close().
    Hold hold() const noexcept { return {mapping_}; }

    std::uintptr_t address() const noexcept {
        return mapping_ ? reinterpret_cast<std::uintptr_t>(mapping_->data()) : 0;
    }
    std::size_t mapped_bytes() const noexcept { return mapped_bytes_; }
    std::size_t page_bytes() const noexcept { return page_bytes_; }
    // Bytes known to lie in huge pages.
    std::size_t huge_bytes() const noexcept { return huge_bytes_; }
    // Whether the kernel took the preference for a NUMA node.
    bool on_numa_node() const noexcept { return on_numa_node_; }
    int descriptor() const noexcept { return descriptor_; }

 private:
    void map(std::size_t alignment);

    int descriptor_ = -1;
    std::shared_ptr<Mapping> mapping_;
    std::size_t mapped_bytes_ = 0;
    std::size_t page_bytes_ = 0;
    std::size_t huge_page_bytes_ = 0;
    std::size_t huge_bytes_ = 0;
    bool on_numa_node_ = false;
    Pages pages_;
};

}  // namespace gramary
