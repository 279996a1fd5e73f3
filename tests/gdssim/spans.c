// Spans: a sorted list of memory ranges, none of which overlap.
#include "spans.h"

#include <stdlib.h>
#include <string.h>

// Index of the first span that ends behind the address.
size_t index_at(const struct spans* spans, uint64_t address) {
    size_t low = 0, high = spans->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (spans->items[middle].start + spans->items[middle].length > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

struct span* span_at(const struct spans* spans, uint64_t address) {
    size_t index = index_at(spans, address);
    int hit = index < spans->count && spans->items[index].start <= address;
    return hit ? &spans->items[index] : NULL;
}

void insert_span(struct spans* spans, struct span span) {
    size_t index = index_at(spans, span.start);
    if (spans->count == spans->room) {
        spans->room = spans->room * 2 + 64;
        spans->items = realloc(spans->items, spans->room * sizeof span);
    }
    memmove(spans->items + index + 1, spans->items + index, (spans->count - index) * sizeof span);
    spans->items[index] = span;
    ++spans->count;
}

// Takes out the span that starts there; its length is 0 when there is none.
struct span remove_span(struct spans* spans, uint64_t start) {
    struct span* found = span_at(spans, start);
    if (found == NULL || found->start != start) {
        return (struct span){0};
    }
    struct span span = *found;
    --spans->count;
    memmove(found, found + 1, (size_t)(spans->items + spans->count - found) * sizeof span);
    return span;
}
