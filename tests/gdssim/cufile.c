// cuFile: transfers between simulated device memory and real files, by pread and pwrite.
//
// A transfer whose offset, length and address are multiples of 4 KiB goes to the descriptor it was
// opened with, which has O_DIRECT; any other goes through the page cache, and is counted.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

// CUfileOpError, as in cufile.h.
enum {
    FILE_OK = 0,
    FILE_NOT_SUPPORTED = 5018,
    FILE_NO_DIRECT = 5019,
    FILE_BAD_DESCRIPTOR = 5022,
    FILE_ALREADY_REGISTERED = 5023,
    FILE_NOT_REGISTERED = 5024,
    FILE_BAD_HANDLE = 5027,
    FILE_NOT_DEVICE = 5013,
    FILE_OUT_OF_RANGE = 5014,
    FILE_NO_BATCH = 5030,
    FILE_PINNING_FAILED = 5036,
};
enum { BLOCK = 4096, BUFFERS_MAX = 1024, HANDLE_BY_DESCRIPTOR = 1, CUFILE_VERSION = 1150 };
enum { NVFS_MAJOR = 2, NVFS_MINOR = 27, DIRECT_KIB_MAX = 16384, CACHE_KIB = 131072 };
enum { BUFFER_CACHE_KIB = 1024, PINNED_KIB_MAX = 33554432, STATUS_NVME = 1u << 6 };

typedef struct {
    int error, cuda_error;
} file_error;
struct descriptor {
    int type;
    union {
        int fd;
        void* handle;
    } of;
    const void* operations;
};
struct properties {
    struct {
        unsigned major, minor;
        size_t poll_threshold, direct_max;
        unsigned status, control;
    } nvfs;
    unsigned features, cache, buffer_cache, pinned, batch, batch_timeout;
};
struct handle {
    int direct, buffered, live;
};
struct buffer {
    uint64_t address;
    size_t length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer buffers[BUFFERS_MAX];

static file_error status(int error) {
    return (file_error){error, 0};
}

#define FILE_ENTER(...)                                                                    \
    do {                                                                                   \
        long result_;                                                                      \
        if (sim_enter((struct sim_call){.function = __func__, ##__VA_ARGS__}, &result_)) { \
            return status((int)result_);                                                   \
        }                                                                                  \
    } while (0)

file_error cuFileGetVersion(int* version) {
    FILE_ENTER();
    *version = CUFILE_VERSION;
    return status(FILE_OK);
}

file_error cuFileDriverOpen(void) {
    FILE_ENTER();
    return status(FILE_OK);
}

file_error cuFileDriverClose(void) {
    FILE_ENTER();
    return status(FILE_OK);
}

file_error cuFileDriverClose_v2(void) {
    FILE_ENTER();
    return status(FILE_OK);
}

// GDSSIM_NVFS=0: no nvidia-fs, as with P2PDMA or on a node where it is not loaded.
file_error cuFileDriverGetProperties(struct properties* properties) {
    FILE_ENTER();
    const char* text = getenv("GDSSIM_NVFS");
    int loaded = text == NULL || *text != '0';
    *properties = (struct properties){
        .cache = CACHE_KIB, .buffer_cache = BUFFER_CACHE_KIB, .pinned = PINNED_KIB_MAX};
    properties->nvfs.direct_max = DIRECT_KIB_MAX;
    properties->nvfs.poll_threshold = BLOCK / 1024;
    properties->nvfs.major = loaded ? NVFS_MAJOR : 0;
    properties->nvfs.minor = loaded ? NVFS_MINOR : 0;
    properties->nvfs.status = loaded ? STATUS_NVME : 0;
    return status(FILE_OK);
}

// Settings are taken and change nothing; the tests count these calls.
file_error cuFileDriverSetPollMode(bool poll, size_t kib) {
    (void)poll;
    FILE_ENTER(.length = kib);
    return status(FILE_OK);
}

file_error cuFileDriverSetMaxCacheSize(size_t kib) {
    FILE_ENTER(.length = kib);
    return status(FILE_OK);
}

file_error cuFileDriverSetMaxPinnedMemSize(size_t kib) {
    FILE_ENTER(.length = kib);
    return status(FILE_OK);
}

file_error cuFileDriverSetMaxDirectIOSize(size_t kib) {
    FILE_ENTER(.length = kib);
    return status(FILE_OK);
}

file_error cuFileHandleRegister(void** result, struct descriptor* descriptor) {
    FILE_ENTER();
    struct stat about;
    int flags = fcntl(descriptor->of.fd, F_GETFL);
    if (descriptor->type != HANDLE_BY_DESCRIPTOR || flags < 0 ||
        fstat(descriptor->of.fd, &about) != 0) {
        return status(FILE_BAD_DESCRIPTOR);
    }
    if (!S_ISREG(about.st_mode)) {
        return status(FILE_NOT_SUPPORTED);
    }
    if (!(flags & O_DIRECT)) {
        return status(FILE_NO_DIRECT);
    }
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor->of.fd);
    struct handle* handle = malloc(sizeof *handle);
    *handle = (struct handle){descriptor->of.fd, open(path, (flags & O_ACCMODE) | O_CLOEXEC), 1};
    *result = handle;
    return status(FILE_OK);
}

// The record stays, so that a late use is refused.
void cuFileHandleDeregister(void* argument) {
    long ignored;
    sim_enter((struct sim_call){.function = __func__}, &ignored);
    struct handle* handle = argument;
    handle->live = 0;
    close(handle->buffered);
}

// The registered buffer that starts there (`whole`) or holds the extent, or NULL. Needs the lock.
static struct buffer* find_buffer(uint64_t address, size_t length, int whole) {
    for (int i = 0; i < BUFFERS_MAX; ++i) {
        struct buffer* each = &buffers[i];
        int starts = each->address == address;
        int holds = each->address <= address && each->address + each->length >= address + length;
        if (each->length > 0 && (whole ? starts : holds)) {
            return each;
        }
    }
    return NULL;
}

static int add_buffer(uint64_t address, size_t length) {
    if (find_buffer(address, length, 1) != NULL) {
        return FILE_ALREADY_REGISTERED;
    }
    int slot = 0;
    while (slot < BUFFERS_MAX && buffers[slot].length > 0) {
        ++slot;
    }
    if (slot == BUFFERS_MAX || !sim_meter_add(SIM_CUFILE_REGISTERED, length)) {
        return FILE_PINNING_FAILED;
    }
    buffers[slot] = (struct buffer){address, length};
    return FILE_OK;
}

file_error cuFileBufRegister(const void* start, size_t length, int flags) {
    (void)flags;
    FILE_ENTER(.address = (uintptr_t)start, .length = length);
    enum sim_where where;
    sim_behind((uintptr_t)start, length, &where);
    if (where != SIM_ON_DEVICE) {
        return status(where == SIM_ELSEWHERE ? FILE_NOT_DEVICE : FILE_OUT_OF_RANGE);
    }
    pthread_mutex_lock(&lock);
    int error = add_buffer((uintptr_t)start, length);
    pthread_mutex_unlock(&lock);
    return status(error);
}

file_error cuFileBufDeregister(const void* start) {
    FILE_ENTER(.address = (uintptr_t)start);
    pthread_mutex_lock(&lock);
    struct buffer* found = find_buffer((uintptr_t)start, 0, 1);
    size_t length = found != NULL ? found->length : 0;
    if (found != NULL) {
        *found = (struct buffer){0};
    }
    pthread_mutex_unlock(&lock);
    sim_meter_sub(SIM_CUFILE_REGISTERED, length);
    return status(length > 0 ? FILE_OK : FILE_NOT_REGISTERED);
}

static void count_kind(const char* function, const char* kind) {
    char name[48];
    snprintf(name, sizeof name, "%s.%s", function, kind);
    sim_count(name);
}

// Moves the bytes; the count that was moved, or -1 with errno when none was.
static ssize_t move(const struct handle* handle, char* memory, size_t length, off_t offset,
                    bool write, bool aligned) {
    size_t done = 0;
    while (done < length) {
        int fd = aligned && done % BLOCK == 0 ? handle->direct : handle->buffered;
        off_t at = offset + (off_t)done;
        ssize_t moved = write ? pwrite(fd, memory + done, length - done, at)
                              : pread(fd, memory + done, length - done, at);
        if (moved < 0 && errno == EINTR) {
            continue;
        }
        if (moved < 0) {
            return done > 0 ? (ssize_t)done : -1;
        }
        if (moved == 0) {
            break;
        }
        done += (size_t)moved;
    }
    return (ssize_t)done;
}

// A fault's result below 0 is returned; any other is a short transfer that moves only so much.
static ssize_t transfer(const char* function, void* argument, uint64_t address, size_t length,
                        off_t offset, bool write) {
    long result = 0;
    struct handle* handle = argument;
    struct sim_call call = {
        .function = function, .address = address, .length = length, .offset = offset};
    int faulty = sim_enter(call, &result);
    if (faulty && result < 0) {
        return result;
    }
    enum sim_where where;
    char* memory = sim_behind(address, length, &where);
    if (!handle->live) {
        return -FILE_BAD_HANDLE;
    }
    if (memory == NULL) {
        return where == SIM_ELSEWHERE ? -FILE_NOT_DEVICE : -FILE_OUT_OF_RANGE;
    }
    bool aligned = ((uint64_t)offset | length | address) % BLOCK == 0;
    if (!aligned) {
        count_kind(function, "unaligned");
    }
    pthread_mutex_lock(&lock);
    bool registered = find_buffer(address, length, 0) != NULL;
    pthread_mutex_unlock(&lock);
    if (!registered) {
        count_kind(function, "unregistered");
    }
    if (faulty && (size_t)result < length) {
        length = (size_t)result;
        aligned = aligned && length % BLOCK == 0;
    }
    return move(handle, memory, length, offset, write, aligned);
}

ssize_t cuFileRead(void* handle, void* base, size_t length, off_t offset, off_t shift) {
    return transfer(__func__, handle, (uintptr_t)base + (uint64_t)shift, length, offset, false);
}

ssize_t cuFileWrite(void* handle, const void* base, size_t length, off_t offset, off_t shift) {
    return transfer(__func__, handle, (uintptr_t)base + (uint64_t)shift, length, offset, true);
}
