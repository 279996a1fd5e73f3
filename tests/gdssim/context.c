// Context: devices, the stack of contexts of each thread, and what is known of a pointer.
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { DEVICES_MAX = 8, STACK_MAX = 64, DRIVER_VERSION = 13000 };
// CUpointer_attribute.
enum {
    ATTRIBUTE_CONTEXT = 1,
    ATTRIBUTE_MEMORY_TYPE = 2,
    ATTRIBUTE_DEVICE_POINTER = 3,
    ATTRIBUTE_HOST_POINTER = 4,
    ATTRIBUTE_IS_MANAGED = 8,
    ATTRIBUTE_DEVICE_ORDINAL = 9,
    ATTRIBUTE_RANGE_START = 11,
    ATTRIBUTE_RANGE_SIZE = 12,
};
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2 };

struct context {
    int device;
};

static struct context primary[DEVICES_MAX] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static _Thread_local struct context* stack[STACK_MAX];
static _Thread_local int depth;

static struct context* current(void) {
    return depth > 0 ? stack[depth - 1] : NULL;
}

int sim_current_device(void) {
    return current() != NULL ? current()->device : -1;
}

static int valid(int device) {
    return device >= 0 && device < sim_device_count();
}

int cuDriverGetVersion(int* version) {
    SIM_ENTER();
    *version = DRIVER_VERSION;
    return CU_OK;
}

int cuDeviceGetCount(int* count) {
    SIM_ENTER();
    *count = sim_device_count();
    return sim_initialized() ? CU_OK : CU_NOT_INITIALIZED;
}

int cuDeviceGet(int* device, int ordinal) {
    SIM_ENTER();
    *device = ordinal;
    return !sim_initialized() ? CU_NOT_INITIALIZED : valid(ordinal) ? CU_OK : CU_INVALID_DEVICE;
}

int cuDeviceGetName(char* name, int room, int device) {
    SIM_ENTER();
    if (!valid(device) || room < 1) {
        return CU_INVALID_DEVICE;
    }
    strncpy(name, "Simulated GPU", (size_t)room - 1);
    name[room - 1] = '\0';
    return CU_OK;
}

// Every attribute is 1: whatever is asked for is supported.
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    (void)attribute;
    SIM_ENTER();
    *value = 1;
    return valid(device) ? CU_OK : CU_INVALID_DEVICE;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
    SIM_ENTER();
    if (!valid(device)) {
        return CU_INVALID_DEVICE;
    }
    *context = &primary[device];
    return CU_OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    SIM_ENTER();
    return valid(device) ? CU_OK : CU_INVALID_DEVICE;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
    SIM_ENTER();
    *flags = 0;
    *active = 1;
    return valid(device) ? CU_OK : CU_INVALID_DEVICE;
}

static int push(struct context* context) {
    if (context == NULL || depth == STACK_MAX) {
        return CU_INVALID_CONTEXT;
    }
    stack[depth++] = context;
    return CU_OK;
}

int cuCtxCreate_v2(void** context, unsigned flags, int device) {
    (void)flags;
    SIM_ENTER();
    if (!valid(device)) {
        return CU_INVALID_DEVICE;
    }
    struct context* created = malloc(sizeof *created);
    created->device = device;
    *context = created;
    return push(created);
}

int cuCtxCreate_v4(void** context, void* parameters, unsigned flags, int device) {
    (void)parameters;
    SIM_ENTER();
    return cuCtxCreate_v2(context, flags, device);
}

// The record stays: a late use of the context finds its device, not freed memory.
int cuCtxDestroy_v2(void* context) {
    SIM_ENTER();
    if (current() == context) {
        --depth;
    }
    return CU_OK;
}

int cuCtxPushCurrent_v2(void* context) {
    SIM_ENTER();
    return push(context);
}

int cuCtxPopCurrent_v2(void** context) {
    SIM_ENTER();
    if (depth == 0) {
        return CU_INVALID_CONTEXT;
    }
    --depth;
    if (context != NULL) {
        *context = stack[depth];
    }
    return CU_OK;
}

int cuCtxSetCurrent(void* context) {
    SIM_ENTER();
    depth = depth > 0 ? depth - 1 : 0;
    return context != NULL ? push(context) : CU_OK;
}

int cuCtxGetCurrent(void** context) {
    SIM_ENTER();
    *context = current();
    return sim_initialized() ? CU_OK : CU_NOT_INITIALIZED;
}

int cuCtxGetDevice(int* device) {
    SIM_ENTER();
    *device = sim_current_device();
    return *device >= 0 ? CU_OK : CU_INVALID_CONTEXT;
}

int cuCtxSynchronize(void) {
    SIM_ENTER();
    if (sim_current_device() < 0) {
        return CU_INVALID_CONTEXT;
    }
    sim_drain_device(sim_current_device());
    return CU_OK;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    SIM_ENTER();
    *least = 0;
    *greatest = -5;
    return CU_OK;
}

// Writes one attribute; 0 when the pointer has none of that name.
static int attribute_of(void* value, int attribute, uint64_t address) {
    struct sim_block block = {0};
    int on_device = sim_find_block(address, &block);
    if (!on_device && !sim_is_host_registered(address)) {
        return 0;
    }
    switch (attribute) {
        case ATTRIBUTE_CONTEXT:
            *(void**)value = &primary[block.device];
            return 1;
        case ATTRIBUTE_MEMORY_TYPE:
            *(unsigned*)value = on_device ? MEMORY_DEVICE : MEMORY_HOST;
            return 1;
        case ATTRIBUTE_DEVICE_POINTER:
            *(uint64_t*)value = address;
            return 1;
        case ATTRIBUTE_HOST_POINTER:
            *(uint64_t*)value = on_device ? 0 : address;
            return !on_device;
        case ATTRIBUTE_IS_MANAGED:
            *(unsigned char*)value = 0;
            return 1;
        case ATTRIBUTE_DEVICE_ORDINAL:
            *(int*)value = block.device;
            return 1;
        case ATTRIBUTE_RANGE_START:
            *(uint64_t*)value = block.address;
            return on_device;
        case ATTRIBUTE_RANGE_SIZE:
            *(size_t*)value = block.length;
            return on_device;
        default:
            return 0;
    }
}

int cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
    SIM_ENTER(.address = address);
    if (!sim_initialized()) {
        return CU_NOT_INITIALIZED;
    }
    return attribute_of(value, attribute, address) ? CU_OK : CU_INVALID;
}

// As CUDA's, it succeeds for foreign pointers and gives zeros.
int cuPointerGetAttributes(unsigned count, int* attributes, void** values, uint64_t address) {
    SIM_ENTER(.address = address);
    if (!sim_initialized()) {
        return CU_NOT_INITIALIZED;
    }
    for (unsigned i = 0; i < count; ++i) {
        if (!attribute_of(values[i], attributes[i], address)) {
            int four_bytes =
                attributes[i] == ATTRIBUTE_MEMORY_TYPE || attributes[i] == ATTRIBUTE_DEVICE_ORDINAL;
            int one_byte = attributes[i] == ATTRIBUTE_IS_MANAGED;
            memset(values[i], 0, one_byte ? 1 : four_bytes ? 4 : 8);
        }
    }
    return CU_OK;
}

int cuGetErrorName(int error, const char** name) {
    switch (error) {
        case CU_INVALID:
            *name = "CUDA_ERROR_INVALID_VALUE";
            return CU_OK;
        case CU_NO_MEMORY:
            *name = "CUDA_ERROR_OUT_OF_MEMORY";
            return CU_OK;
        case CU_NOT_INITIALIZED:
            *name = "CUDA_ERROR_NOT_INITIALIZED";
            return CU_OK;
        case CU_INVALID_CONTEXT:
            *name = "CUDA_ERROR_INVALID_CONTEXT";
            return CU_OK;
        default:
            *name = "CUDA_ERROR_SIMULATED";
            return CU_OK;
    }
}

int cuGetErrorString(int error, const char** text) {
    (void)error;
    *text = "simulated driver";
    return CU_OK;
}
