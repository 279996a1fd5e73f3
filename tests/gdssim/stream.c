// Stream: queues of copies and functions, events, and the copies themselves.
//
// With GDSSIM_DEFER=1 nothing runs before something waits for it, so that a missing wait shows as
// stale bytes. One lock holds all queues: the order of the work is then that of CUDA's rules alone.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { DEVICES_MAX = 8, STREAM_LEGACY = 1, STREAM_PER_THREAD = 2, STREAM_NON_BLOCKING = 1 };

struct work {
    void (*run)(void*);
    void* argument;
    long ticket;
    struct work* next;
};
struct stream {
    struct work *first, *last;
    struct stream* next;
    int device, blocking, priority, queried;
    unsigned flags;
};
struct event {
    struct stream* stream;
    long ticket;
    int queried;
};

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct stream null_streams[DEVICES_MAX];
static struct stream* streams;
static long tickets;
static int deferred;

static void set_up(void) {
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &recursive);
    const char* text = getenv("GDSSIM_DEFER");
    deferred = text != NULL && *text == '1';
    for (int i = 0; i < DEVICES_MAX; ++i) {
        null_streams[i].device = i;
    }
}

static void take_lock(void) {
    pthread_once(&once, set_up);
    pthread_mutex_lock(&lock);
}

static void let_go(void) {
    pthread_mutex_unlock(&lock);
}

static int is_null(const struct stream* stream) {
    return stream >= null_streams && stream < null_streams + DEVICES_MAX;
}

static struct stream* stream_of(void* handle) {
    if ((uintptr_t)handle > STREAM_PER_THREAD) {
        return handle;
    }
    int device = sim_current_device();
    return &null_streams[device < 0 ? 0 : device];
}

static void drain(struct stream* stream, long ticket);

// Runs what CUDA's rules put before work of this ticket: the NULL stream and blocking streams of a
// device wait for each other.
static void drain_before(struct stream* stream, long ticket) {
    if (is_null(stream)) {
        for (struct stream* each = streams; each != NULL; each = each->next) {
            if (each->blocking && each->device == stream->device) {
                drain(each, ticket);
            }
        }
    } else if (stream->blocking) {
        drain(&null_streams[stream->device], ticket);
    }
}

static void drain(struct stream* stream, long ticket) {
    while (stream->first != NULL && stream->first->ticket <= ticket) {
        struct work* work = stream->first;
        drain_before(stream, work->ticket - 1);
        if (stream->first != work) {
            continue;
        }
        stream->first = work->next;
        work->run(work->argument);
        free(work);
    }
}

static void wait_for(struct stream* stream) {
    take_lock();
    long now = tickets;
    drain(stream, now);
    drain_before(stream, now);
    let_go();
}

void sim_enqueue(void* handle, void (*run)(void*), void* argument) {
    take_lock();
    struct stream* stream = stream_of(handle);
    struct work* work = malloc(sizeof *work);
    *work = (struct work){.run = run, .argument = argument, .ticket = ++tickets};
    if (stream->first == NULL) {
        stream->first = work;
    } else {
        stream->last->next = work;
    }
    stream->last = work;
    if (!deferred) {
        drain(stream, tickets);
    }
    let_go();
}

void sim_drain_device(int device) {
    take_lock();
    drain(&null_streams[device], tickets);
    for (struct stream* each = streams; each != NULL; each = each->next) {
        if (each->device == device) {
            drain(each, tickets);
        }
    }
    let_go();
}

int cuStreamCreateWithPriority(void** handle, unsigned flags, int priority) {
    SIM_ENTER();
    int device = sim_current_device();
    if (device < 0) {
        return CU_INVALID_CONTEXT;
    }
    struct stream* stream = calloc(1, sizeof *stream);
    stream->device = device;
    stream->blocking = !(flags & STREAM_NON_BLOCKING);
    stream->flags = flags;
    stream->priority = priority;
    take_lock();
    stream->next = streams;
    streams = stream;
    let_go();
    *handle = stream;
    return CU_OK;
}

int cuStreamCreate(void** handle, unsigned flags) {
    SIM_ENTER();
    return cuStreamCreateWithPriority(handle, flags, 0);
}

// The record stays, so that late use is no use of freed memory.
int cuStreamDestroy_v2(void* handle) {
    SIM_ENTER(.stream = (uintptr_t)handle);
    take_lock();
    drain(stream_of(handle), tickets);
    let_go();
    return CU_OK;
}

int cuStreamSynchronize(void* handle) {
    SIM_ENTER(.stream = (uintptr_t)handle);
    wait_for(stream_of(handle));
    return CU_OK;
}

// Time passes on a GPU whoever looks: the second look finds the work done.
static int look(struct stream* stream, long ticket, int* queried) {
    take_lock();
    int ready = stream->first == NULL || stream->first->ticket > ticket;
    if (!ready && (*queried)++ > 0) {
        drain(stream, ticket);
        ready = 1;
    }
    let_go();
    return ready ? CU_OK : CU_NOT_READY;
}

int cuStreamQuery(void* handle) {
    SIM_ENTER(.stream = (uintptr_t)handle);
    struct stream* stream = stream_of(handle);
    return look(stream, tickets, &stream->queried);
}

int cuEventCreate(void** handle, unsigned flags) {
    (void)flags;
    SIM_ENTER();
    *handle = calloc(1, sizeof(struct event));
    return CU_OK;
}

int cuEventDestroy_v2(void* handle) {
    SIM_ENTER();
    free(handle);
    return CU_OK;
}

int cuEventRecord(void* handle, void* stream) {
    SIM_ENTER(.stream = (uintptr_t)stream);
    take_lock();
    *(struct event*)handle = (struct event){stream_of(stream), tickets, 0};
    let_go();
    return CU_OK;
}

int cuEventSynchronize(void* handle) {
    SIM_ENTER();
    struct event* event = handle;
    take_lock();
    if (event->stream != NULL) {
        drain(event->stream, event->ticket);
        drain_before(event->stream, event->ticket);
    }
    let_go();
    return CU_OK;
}

int cuEventQuery(void* handle) {
    SIM_ENTER();
    struct event* event = handle;
    return event->stream == NULL ? CU_OK : look(event->stream, event->ticket, &event->queried);
}

static void wait_in_stream(void* argument) {
    struct event* event = argument;
    drain(event->stream, event->ticket);
    drain_before(event->stream, event->ticket);
    free(event);
}

int cuStreamWaitEvent(void* stream, void* handle, unsigned flags) {
    (void)flags;
    SIM_ENTER(.stream = (uintptr_t)stream);
    struct event* event = handle;
    if (event->stream != NULL) {
        struct event* copy = malloc(sizeof *copy);
        *copy = *event;
        sim_enqueue(stream, wait_in_stream, copy);
    }
    return CU_OK;
}

int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
    SIM_ENTER(.stream = (uintptr_t)stream);
    sim_enqueue(stream, function, argument);
    return CU_OK;
}
