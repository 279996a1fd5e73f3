// cuFile in streams: transfers that take their turn in a stream, and the batch calls, which refuse.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/types.h>

#include "sim.h"

enum { FILE_OK = 0, FILE_NO_BATCH = 5030 };

typedef struct {
    int error, cuda_error;
} file_error;
// cuFile reads the arguments when the transfer's turn comes, so they are pointers here too.
struct request {
    int write;
    void *handle, *base;
    size_t* length;
    off_t *offset, *shift;
    ssize_t* moved;
};

ssize_t cuFileRead(void* handle, void* base, size_t length, off_t offset, off_t shift);
ssize_t cuFileWrite(void* handle, const void* base, size_t length, off_t offset, off_t shift);

static void run_request(void* argument) {
    struct request* each = argument;
    *each->moved =
        each->write
            ? cuFileWrite(each->handle, each->base, *each->length, *each->offset, *each->shift)
            : cuFileRead(each->handle, each->base, *each->length, *each->offset, *each->shift);
    free(each);
}

static file_error enqueue(struct request request, void* stream) {
    struct request* copy = malloc(sizeof *copy);
    *copy = request;
    sim_enqueue(stream, run_request, copy);
    return (file_error){FILE_OK, 0};
}

#define FILE_ENTER(...)                                                                    \
    do {                                                                                   \
        long result_;                                                                      \
        if (sim_enter((struct sim_call){.function = __func__, ##__VA_ARGS__}, &result_)) { \
            return (file_error){(int)result_, 0};                                          \
        }                                                                                  \
    } while (0)

file_error cuFileReadAsync(void* handle, void* base, size_t* length, off_t* offset, off_t* shift,
                           ssize_t* moved, void* stream) {
    FILE_ENTER(.stream = (uintptr_t)stream, .address = (uintptr_t)base);
    return enqueue((struct request){0, handle, base, length, offset, shift, moved}, stream);
}

file_error cuFileWriteAsync(void* handle, void* base, size_t* length, off_t* offset, off_t* shift,
                            ssize_t* moved, void* stream) {
    FILE_ENTER(.stream = (uintptr_t)stream, .address = (uintptr_t)base);
    return enqueue((struct request){1, handle, base, length, offset, shift, moved}, stream);
}

file_error cuFileStreamRegister(void* stream, unsigned flags) {
    (void)flags;
    FILE_ENTER(.stream = (uintptr_t)stream);
    return (file_error){FILE_OK, 0};
}

file_error cuFileStreamDeregister(void* stream) {
    FILE_ENTER(.stream = (uintptr_t)stream);
    return (file_error){FILE_OK, 0};
}

// kvikio looks these up when it loads the library, and calls them nowhere on our path.
file_error cuFileBatchIOSetUp(void) {
    return (file_error){FILE_NO_BATCH, 0};
}
file_error cuFileBatchIOSubmit(void) {
    return (file_error){FILE_NO_BATCH, 0};
}
file_error cuFileBatchIOGetStatus(void) {
    return (file_error){FILE_NO_BATCH, 0};
}
file_error cuFileBatchIOCancel(void) {
    return (file_error){FILE_NO_BATCH, 0};
}
void cuFileBatchIODestroy(void) {}
