#include <algorithm>
#include <cstdio>
#include <cstring>

#include "scenarios.hpp"

// Runs the scenarios that are named, or all of them.
int main(int num_words, char** words) {
    using namespace gramary::threads;
    const struct {
        const char* name;
        void (*run)();
    } scenarios[] = {
        {"pools", try_pools}, {"gate", try_gate}, {"disk", try_disk}, {"service", try_service}};
    for (const auto& scenario : scenarios) {
        const bool is_named = std::any_of(words + 1, words + num_words, [&](const char* word) {
            return std::strcmp(word, scenario.name) == 0;
        });
        if (num_words > 1 && !is_named) continue;
        scenario.run();
        std::printf("%s: right\n", scenario.name);
        std::fflush(stdout);
    }
}
