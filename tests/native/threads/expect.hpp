#pragma once
#include <cstdio>
#include <cstdlib>

// Ends the program where a result is wrong: a race that no sanitizer sees shows here.
#define EXPECT(condition)                                                                \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                \
        }                                                                                \
    } while (false)
