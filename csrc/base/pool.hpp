#pragma once
#include <cstdint>
#include <functional>

namespace gramary {

// Threads that split one index range at a time; implementations differ in how they wait for work.
class Pool {
 public:
    using Body = std::function<void(std::int64_t begin, std::int64_t end)>;

    virtual ~Pool() = default;

    // Calls body(begin, end) over disjoint pieces that cover [0, count) and returns when all are
    // done; the calling thread works too. `grain`: how many indices are worth waking a thread for.
    virtual void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) = 0;
};

// The calling thread alone.
class SerialPool final : public Pool {
 public:
    void parallel_for(std::int64_t count, std::int64_t /*grain*/, const Body& body) override {
        if (count > 0) body(0, count);
    }
};

}  // namespace gramary
