// Spans: a sorted list of memory ranges, none of which overlap. Callers hold a lock of their own.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct span {
    uint64_t start;
    size_t length;
    int allocated;
};
struct spans {
    struct span* items;
    size_t count, room;
};

size_t index_at(const struct spans* spans, uint64_t address);
struct span* span_at(const struct spans* spans, uint64_t address);
void insert_span(struct spans* spans, struct span span);
struct span remove_span(struct spans* spans, uint64_t start);
