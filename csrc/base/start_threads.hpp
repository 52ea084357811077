#pragma once
#include <cstddef>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace gramary {

// Starts up to `count` threads, number i of which runs body(i): fewer, or none, where limits on
// processes or on address space leave no more. Whoever starts threads must do with those that came.
template <class Body>
void start_threads(std::vector<std::thread>& threads, int count, const Body& body) {
    threads.reserve(static_cast<std::size_t>(count > 0 ? count : 0));
    try {
        for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
}

}  // namespace gramary
