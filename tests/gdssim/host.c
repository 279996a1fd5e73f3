// Host memory that the driver has registered or allocated, each byte of it counted.
#include <pthread.h>
#include <stdlib.h>

#include "sim.h"
#include "spans.h"

enum { PAGE = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct spans host;

int sim_is_host_registered(uint64_t address) {
    pthread_mutex_lock(&lock);
    int found = span_at(&host, address) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

static int register_host(uint64_t start, size_t length, enum sim_meter meter) {
    if (length == 0) {
        return CU_INVALID;
    }
    if (!sim_meter_add(meter, length)) {
        return CU_NO_MEMORY;
    }
    pthread_mutex_lock(&lock);
    size_t next = index_at(&host, start);
    int overlaps = next < host.count && host.items[next].start < start + length;
    if (!overlaps) {
        insert_span(&host, (struct span){start, length, meter == SIM_HOST_ALLOCATED});
    }
    pthread_mutex_unlock(&lock);
    if (overlaps) {
        sim_meter_sub(meter, length);
    }
    return overlaps ? CU_ALREADY_REGISTERED : CU_OK;
}

int cuMemHostRegister_v2(void* start, size_t length, unsigned flags) {
    (void)flags;
    SIM_ENTER(.address = (uintptr_t)start, .length = length);
    return register_host((uintptr_t)start, length, SIM_HOST_REGISTERED);
}

int cuMemHostUnregister(void* start) {
    SIM_ENTER(.address = (uintptr_t)start);
    pthread_mutex_lock(&lock);
    struct span span = remove_span(&host, (uintptr_t)start);
    pthread_mutex_unlock(&lock);
    if (span.length == 0) {
        return CU_NOT_REGISTERED;
    }
    sim_meter_sub(SIM_HOST_REGISTERED, span.length);
    return CU_OK;
}

int cuMemHostAlloc(void** start, size_t length, unsigned flags) {
    (void)flags;
    SIM_ENTER(.length = length);
    *start = aligned_alloc(PAGE, (length + PAGE - 1) / PAGE * PAGE);
    int result = *start == NULL ? CU_NO_MEMORY
                                : register_host((uintptr_t)*start, length, SIM_HOST_ALLOCATED);
    if (result != CU_OK) {
        free(*start);
    }
    return result;
}

int cuMemAllocHost_v2(void** start, size_t length) {
    SIM_ENTER(.length = length);
    return cuMemHostAlloc(start, length, 0);
}

int cuMemFreeHost(void* start) {
    SIM_ENTER(.address = (uintptr_t)start);
    pthread_mutex_lock(&lock);
    struct span span = remove_span(&host, (uintptr_t)start);
    pthread_mutex_unlock(&lock);
    if (span.length == 0 || !span.allocated) {
        return CU_INVALID;
    }
    sim_meter_sub(SIM_HOST_ALLOCATED, span.length);
    free(start);
    return CU_OK;
}

int cuMemHostGetDevicePointer_v2(uint64_t* address, void* start, unsigned flags) {
    (void)flags;
    SIM_ENTER(.address = (uintptr_t)start);
    *address = (uintptr_t)start;
    return sim_is_host_registered((uintptr_t)start) ? CU_OK : CU_INVALID;
}
