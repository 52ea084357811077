#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>

namespace gramary {

// Memory that starts on a page boundary, grows on demand and keeps nothing when it does.
class AlignedBuffer {
 public:
    explicit AlignedBuffer(std::size_t alignment = 4096) noexcept : alignment_(alignment) {}
    ~AlignedBuffer() { std::free(data_); }
    AlignedBuffer(const AlignedBuffer&) = delete;
    AlignedBuffer& operator=(const AlignedBuffer&) = delete;

    std::size_t size() const noexcept { return size_; }
    std::uint8_t* data() const noexcept { return data_; }

    std::uint8_t* reserve(std::size_t size) {
        if (size <= size_) return data_;
        std::free(data_);
        size_ = 0;
        const std::size_t rounded = (size + alignment_ - 1) / alignment_ * alignment_;
        data_ = static_cast<std::uint8_t*>(std::aligned_alloc(alignment_, rounded));
        if (data_ == nullptr) throw std::bad_alloc();
        size_ = rounded;
        return data_;
    }

 private:
    std::size_t alignment_;
    std::size_t size_ = 0;
    std::uint8_t* data_ = nullptr;
};

}  // namespace gramary
