// Copy: bytes between host and device memory, at once or in a stream.
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct copy {
    void* target;
    const void* source;
    size_t length;
};

int cuStreamSynchronize(void* stream);

static void run_copy(void* argument) {
    struct copy* copy = argument;
    memmove(copy->target, copy->source, copy->length);
    free(copy);
}

static int enqueue_copy(uint64_t target, uint64_t source, size_t length, void* stream) {
    enum sim_where target_where, source_where;
    void* to = sim_behind(target, length, &target_where);
    void* from = sim_behind(source, length, &source_where);
    if (target_where == SIM_OUT_OF_RANGE || source_where == SIM_OUT_OF_RANGE) {
        return CU_INVALID;
    }
    struct copy* copy = malloc(sizeof *copy);
    copy->target = to != NULL ? to : (void*)(uintptr_t)target;
    copy->source = from != NULL ? from : (void*)(uintptr_t)source;
    copy->length = length;
    sim_enqueue(stream, run_copy, copy);
    return CU_OK;
}

// A copy without a stream takes its turn in the NULL stream, and is done when it returns.
static int copy_now(uint64_t target, uint64_t source, size_t length) {
    if (sim_current_device() < 0) {
        return CU_INVALID_CONTEXT;
    }
    int result = enqueue_copy(target, source, length, NULL);
    return result != CU_OK ? result : cuStreamSynchronize(NULL);
}

#define ENTER_COPY(to) SIM_ENTER(.stream = (uintptr_t)stream, .address = (to), .length = length)

int cuMemcpyAsync(uint64_t target, uint64_t source, size_t length, void* stream) {
    ENTER_COPY(target);
    return enqueue_copy(target, source, length, stream);
}

int cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t length, void* stream) {
    ENTER_COPY(target);
    return enqueue_copy(target, (uintptr_t)source, length, stream);
}

int cuMemcpyDtoHAsync_v2(void* target, uint64_t source, size_t length, void* stream) {
    ENTER_COPY((uintptr_t)target);
    return enqueue_copy((uintptr_t)target, source, length, stream);
}

int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t length, void* stream) {
    ENTER_COPY(target);
    return enqueue_copy(target, source, length, stream);
}

int cuMemcpyPeerAsync(uint64_t target, void* target_context, uint64_t source, void* source_context,
                      size_t length, void* stream) {
    (void)target_context;
    (void)source_context;
    ENTER_COPY(target);
    return enqueue_copy(target, source, length, stream);
}

int cuMemcpyHtoD_v2(uint64_t target, const void* source, size_t length) {
    SIM_ENTER(.address = target, .length = length);
    return copy_now(target, (uintptr_t)source, length);
}

int cuMemcpyDtoH_v2(void* target, uint64_t source, size_t length) {
    SIM_ENTER(.address = (uintptr_t)target, .length = length);
    return copy_now((uintptr_t)target, source, length);
}

// As CUDA's: within the device the call does not wait for its copy.
int cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t length) {
    SIM_ENTER(.address = target, .length = length);
    return enqueue_copy(target, source, length, NULL);
}

struct fill {
    void* target;
    size_t length;
    unsigned char value;
};

static void run_fill(void* argument) {
    struct fill* fill = argument;
    memset(fill->target, fill->value, fill->length);
    free(fill);
}

int cuMemsetD8Async(uint64_t target, unsigned char value, size_t length, void* stream) {
    ENTER_COPY(target);
    enum sim_where where;
    void* to = sim_behind(target, length, &where);
    if (where != SIM_ON_DEVICE) {
        return CU_INVALID;
    }
    struct fill* fill = malloc(sizeof *fill);
    *fill = (struct fill){to, length, value};
    sim_enqueue(stream, run_fill, fill);
    return CU_OK;
}

// CUDA 13's form; kvikio copies its small transfers with it.
int cuMemcpyBatchAsync_v2(uint64_t* targets, uint64_t* sources, size_t* lengths, size_t count,
                          void* attributes, size_t* indices, size_t attribute_count, void* stream) {
    (void)attributes;
    (void)indices;
    (void)attribute_count;
    SIM_ENTER(.stream = (uintptr_t)stream);
    if (stream == NULL) {
        return CU_INVALID;
    }
    for (size_t i = 0; i < count; ++i) {
        int result = enqueue_copy(targets[i], sources[i], lengths[i], stream);
        if (result != CU_OK) {
            return result;
        }
    }
    return CU_OK;
}
