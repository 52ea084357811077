#pragma once
#include <unistd.h>

#include <utility>

namespace gramary {

// A file descriptor that closes itself; -1 once it is closed.
class Descriptor {
 public:
    explicit Descriptor(int number) noexcept : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&&) = delete;
    ~Descriptor() { close(); }

    int number() const noexcept { return number_; }
    // More calls do nothing.
    void close() noexcept {
        if (number_ >= 0) ::close(std::exchange(number_, -1));
    }

 private:
    int number_;
};

}  // namespace gramary
