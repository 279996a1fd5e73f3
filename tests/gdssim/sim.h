// What the parts of the simulated driver share: the entry of every call, memory, streams.
#pragma once

#include <stddef.h>
#include <stdint.h>

// CUresult values that the simulator returns; numbers as in cuda.h.
enum {
    CU_OK = 0,
    CU_INVALID = 1,
    CU_NO_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_CONTEXT = 201,
    CU_INVALID_HANDLE = 400,
    CU_NOT_READY = 600,
    CU_ALREADY_REGISTERED = 712,
    CU_NOT_REGISTERED = 713,
};

// One call into the simulator, as the tests read it. `device` is the current context's, -1 without.
struct sim_call {
    const char* function;
    int thread;
    int device;
    uint64_t stream;
    uint64_t address;
    uint64_t length;
    int64_t offset;
};

// Counts and records a call, and lets a fault act. 1: return *result at once, errno is set.
int sim_enter(struct sim_call call, long* result);
void sim_count(const char* function);

// First line of every entry point: SIM_ENTER(.stream = ..., .length = ...).
#define SIM_ENTER(...)                                                                     \
    do {                                                                                   \
        long result_;                                                                      \
        if (sim_enter((struct sim_call){.function = __func__, ##__VA_ARGS__}, &result_)) { \
            return (int)result_;                                                           \
        }                                                                                  \
    } while (0)

// What is in use, the most that ever was, and the most that may be.
enum sim_meter { SIM_DEVICE, SIM_HOST_REGISTERED, SIM_HOST_ALLOCATED, SIM_CUFILE_REGISTERED };
int sim_meter_add(enum sim_meter meter, size_t bytes);  // 0: over the limit, nothing added
void sim_meter_sub(enum sim_meter meter, size_t bytes);

enum sim_where { SIM_ON_DEVICE, SIM_ELSEWHERE, SIM_OUT_OF_RANGE };
struct sim_block {
    uint64_t address;
    size_t length;
    int device;
};
int sim_initialized(void);
int sim_device_count(void);
int sim_find_block(uint64_t address, struct sim_block* block);
int sim_is_host_registered(uint64_t address);
// Memory that the CPU may touch behind a device address, or NULL.
void* sim_behind(uint64_t address, size_t length, enum sim_where* where);

int sim_current_device(void);  // -1: no context is current in this thread

void sim_enqueue(void* stream, void (*work)(void*), void* argument);
void sim_drain_device(int device);
