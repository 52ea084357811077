#pragma once
#include <algorithm>
#include <cstdint>

#include "disk/aligned_buffer.hpp"
#include "disk/read_task.hpp"

namespace gramary {

// Memory for a few reads of a task, which are delivered together. One thread's.
class ArrivalGroup {
 public:
    explicit ArrivalGroup(ReadTask& task) : task_(task) {}

    // Memory for a read; the next call gives the same unless the read was added.
    std::uint8_t* reserve(std::uint32_t length) {
        if (count_ == kMost || used_ + length > kBytes) deliver();
        return buffer().reserve(std::max<std::size_t>(kBytes, length)) + used_;
    }

    // The bytes of a read have come to the memory reserved for it.
    void add(const BlockRead& read) {
        arrivals_[count_++] = {&read, buffer().data() + used_};
        used_ += read.length;
    }

    void deliver() {
        if (count_ > 0) task_.deliver({arrivals_, count_});
        count_ = 0;
        used_ = 0;
    }

 private:
    static constexpr std::size_t kMost = 16;
    static constexpr std::size_t kBytes = std::size_t{64} << 10;
    static AlignedBuffer& buffer() {
        thread_local AlignedBuffer memory;
        return memory;
    }

    ReadTask& task_;
    Arrival arrivals_[kMost];
    std::size_t count_ = 0;
    std::size_t used_ = 0;
};

}  // namespace gramary
