// Memory: device memory behind addresses that the CPU cannot touch, and the meters.
//
// All devices lie in one memfd, mapped twice. The device addresses are the mapping without access,
// so that a stray CPU access ends the process as it would with a GPU; copies go through the other
// one.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"
#include "spans.h"

enum { SMALL_ALIGNMENT = 512, LARGE_ALIGNMENT = 2 << 20, LARGE = 1 << 20 };
enum { ARENA_MIB = 1024, DEVICES_MAX = 8, METERS = 4 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct spans blocks;
static char *device_side, *cpu_side;
static size_t arena;
static int devices;
static struct {
    size_t now, peak, limit;
} meters[METERS];

static size_t number_in_environment(const char* name, size_t otherwise) {
    const char* text = getenv(name);
    return text != NULL ? strtoul(text, NULL, 10) : otherwise;
}

int cuInit(unsigned flags) {
    (void)flags;
    SIM_ENTER();
    pthread_mutex_lock(&lock);
    if (cpu_side == NULL) {
        devices = (int)number_in_environment("GDSSIM_DEVICES", 1);
        arena = number_in_environment("GDSSIM_ARENA_MIB", ARENA_MIB) << 20;
        size_t total = arena * (size_t)devices;
        int fd = memfd_create("gdssim", MFD_CLOEXEC);
        if (fd < 0 || devices > DEVICES_MAX || ftruncate(fd, (off_t)total) != 0) {
            abort();
        }
        // Reserved first, with room to begin at a whole 2 MiB as cuMemAlloc's large blocks do.
        char* room =
            mmap(NULL, total + LARGE_ALIGNMENT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED) {
            abort();
        }
        room += LARGE_ALIGNMENT - (uintptr_t)room % LARGE_ALIGNMENT;
        device_side = mmap(room, total, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0);
        cpu_side = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (device_side == MAP_FAILED || cpu_side == MAP_FAILED) {
            abort();
        }
    }
    pthread_mutex_unlock(&lock);
    return CU_OK;
}

int sim_initialized(void) {
    return cpu_side != NULL;
}
int sim_device_count(void) {
    return devices;
}

int sim_meter_add(enum sim_meter meter, size_t bytes) {
    pthread_mutex_lock(&lock);
    size_t total = meters[meter].now + bytes;
    int fits = meters[meter].limit == 0 || total <= meters[meter].limit;
    if (fits) {
        meters[meter].now = total;
        meters[meter].peak = total > meters[meter].peak ? total : meters[meter].peak;
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

void sim_meter_sub(enum sim_meter meter, size_t bytes) {
    pthread_mutex_lock(&lock);
    meters[meter].now -= bytes;
    pthread_mutex_unlock(&lock);
}

void sim_read_meter(int meter, size_t* now, size_t* peak) {
    pthread_mutex_lock(&lock);
    *now = meters[meter].now;
    *peak = meters[meter].peak;
    pthread_mutex_unlock(&lock);
}

// 0 bytes: no limit. The peak starts anew.
void sim_limit(int meter, size_t bytes) {
    pthread_mutex_lock(&lock);
    meters[meter].limit = bytes;
    meters[meter].peak = meters[meter].now;
    pthread_mutex_unlock(&lock);
}

// First gap of a device's arena that holds so many bytes, or 0.
static uint64_t gap_for(int device, size_t length) {
    uint64_t alignment = length >= LARGE ? LARGE_ALIGNMENT : SMALL_ALIGNMENT;
    uint64_t start = (uintptr_t)device_side + arena * (size_t)device, end = start + arena;
    uint64_t offset = 0;
    for (size_t i = index_at(&blocks, start); i < blocks.count; ++i) {
        struct span* block = &blocks.items[i];
        if (block->start >= end || start + offset + length <= block->start) {
            break;
        }
        offset = block->start + block->length - start;
        offset = (offset + alignment - 1) / alignment * alignment;
    }
    return offset + length <= arena ? start + offset : 0;
}

int cuMemAlloc_v2(uint64_t* address, size_t length) {
    SIM_ENTER(.length = length);
    int device = sim_current_device();
    if (device < 0) {
        return CU_INVALID_CONTEXT;
    }
    if (length == 0) {
        return CU_INVALID;
    }
    if (!sim_meter_add(SIM_DEVICE, length)) {
        return CU_NO_MEMORY;
    }
    pthread_mutex_lock(&lock);
    uint64_t start = gap_for(device, length);
    if (start != 0) {
        insert_span(&blocks, (struct span){start, length, 1});
    }
    pthread_mutex_unlock(&lock);
    if (start == 0) {
        sim_meter_sub(SIM_DEVICE, length);
        return CU_NO_MEMORY;
    }
    *address = start;
    return CU_OK;
}

// As CUDA's, it waits for the device first.
int cuMemFree_v2(uint64_t address) {
    SIM_ENTER(.address = address);
    struct sim_block block;
    if (!sim_find_block(address, &block) || block.address != address) {
        return CU_INVALID;
    }
    sim_drain_device(block.device);
    pthread_mutex_lock(&lock);
    remove_span(&blocks, address);
    pthread_mutex_unlock(&lock);
    sim_meter_sub(SIM_DEVICE, block.length);
    return CU_OK;
}

int sim_find_block(uint64_t address, struct sim_block* block) {
    pthread_mutex_lock(&lock);
    struct span* found = span_at(&blocks, address);
    if (found != NULL) {
        int device = (int)((found->start - (uintptr_t)device_side) / arena);
        *block = (struct sim_block){found->start, found->length, device};
    }
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

void* sim_behind(uint64_t address, size_t length, enum sim_where* where) {
    struct sim_block block;
    if (!sim_find_block(address, &block)) {
        uint64_t start = (uintptr_t)device_side;
        int freed = address >= start && address < start + arena * (size_t)devices;
        *where = freed ? SIM_OUT_OF_RANGE : SIM_ELSEWHERE;
        return NULL;
    }
    int inside = address + length <= block.address + block.length;
    *where = inside ? SIM_ON_DEVICE : SIM_OUT_OF_RANGE;
    return inside ? cpu_side + (address - (uintptr_t)device_side) : NULL;
}

int cuMemGetAddressRange_v2(uint64_t* base, size_t* length, uint64_t address) {
    SIM_ENTER(.address = address);
    struct sim_block block;
    if (!sim_find_block(address, &block)) {
        return CU_INVALID;
    }
    if (base != NULL) {
        *base = block.address;
    }
    if (length != NULL) {
        *length = block.length;
    }
    return CU_OK;
}

int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    SIM_ENTER();
    size_t peak;
    sim_read_meter(SIM_DEVICE, free_bytes, &peak);
    *free_bytes = arena - *free_bytes;
    *total = arena;
    return CU_OK;
}
