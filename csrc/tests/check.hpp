// Check: an assertion that also holds in release builds and says where it failed.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                \
        }                                                                                \
    } while (false)

/// Check that `statement` throws `exception`.
#define CHECK_THROWS(statement, exception) \
    do {                                   \
        bool thrown = false;               \
        try {                              \
            statement;                     \
        } catch (const exception&) {       \
            thrown = true;                 \
        }                                  \
        CHECK(thrown);                     \
    } while (false)
