// Calls: counted, recorded, and made to fail, wait or abort as a test asks.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

enum { NAME_MAX_ = 48, FUNCTIONS_MAX = 256, FAULTS_MAX = 64, RECORDS_MAX = 1 << 16 };
enum action { ACT_RETURN, ACT_DELAY, ACT_HOLD, ACT_ABORT };

struct fault {
    char function[NAME_MAX_];
    long skip, count, result, delay_us;
    int error;
    enum action action;
};
struct tally {
    char function[NAME_MAX_];
    long calls, faults, held;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct fault faults[FAULTS_MAX];
static struct tally tallies[FUNCTIONS_MAX];
static struct sim_call records[RECORDS_MAX];
static int fault_count, tally_count, environment_read;
static long record_count, releases;

static struct tally* tally_of(const char* function) {
    int i = 0;
    while (i < tally_count && strcmp(tallies[i].function, function) != 0) {
        ++i;
    }
    if (i == tally_count) {
        if (tally_count == FUNCTIONS_MAX) {
            abort();
        }
        ++tally_count;
        tallies[i] = (struct tally){.calls = 0};
        snprintf(tallies[i].function, NAME_MAX_, "%s", function);
    }
    return &tallies[i];
}

static void add_fault(const char* function, long skip, long count, long result, int error,
                      long delay_us, int action) {
    if (fault_count == FAULTS_MAX) {
        abort();
    }
    struct fault* fault = &faults[fault_count++];
    *fault = (struct fault){.skip = skip,
                            .count = count,
                            .result = result,
                            .delay_us = delay_us,
                            .error = error,
                            .action = (enum action)action};
    snprintf(fault->function, NAME_MAX_, "%s", function);
}

// A process that nobody can call into, such as a probe's child, gets its faults by environment.
static void read_environment(void) {
    environment_read = 1;
    const char* text = getenv("GDSSIM_FAULTS");
    char function[NAME_MAX_];
    long skip, count, result, delay_us;
    int error, action, used;
    while (text != NULL && sscanf(text, "%47[^,],%ld,%ld,%ld,%d,%ld,%d;%n", function, &skip, &count,
                                  &result, &error, &delay_us, &action, &used) == 7) {
        add_fault(function, skip, count, result, error, delay_us, action);
        text += used;
    }
}

void sim_inject(const char* function, long skip, long count, long result, int error, long delay_us,
                int action) {
    pthread_mutex_lock(&lock);
    add_fault(function, skip, count, result, error, delay_us, action);
    pthread_mutex_unlock(&lock);
}

// Lets go on what a hold fault keeps.
void sim_release(void) {
    pthread_mutex_lock(&lock);
    ++releases;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

// Forgets faults, counts and records; what is held goes on.
void sim_reset(void) {
    pthread_mutex_lock(&lock);
    fault_count = tally_count = 0;
    record_count = 0;
    ++releases;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

long sim_calls(const char* function) {
    pthread_mutex_lock(&lock);
    long calls = tally_of(function)->calls;
    pthread_mutex_unlock(&lock);
    return calls;
}

// How often a fault acted on the function.
long sim_faults(const char* function) {
    pthread_mutex_lock(&lock);
    long count = tally_of(function)->faults;
    pthread_mutex_unlock(&lock);
    return count;
}

// Blocks until `count` calls have come to a hold fault of the function since the last reset.
void sim_await_held(const char* function, long count) {
    pthread_mutex_lock(&lock);
    while (tally_of(function)->held < count) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

// The record number `index` since the last reset, or 0: there is none, or it has been overwritten.
int sim_record(long index, struct sim_call* record) {
    pthread_mutex_lock(&lock);
    int found = index < record_count && index >= record_count - RECORDS_MAX;
    if (found) {
        *record = records[index % RECORDS_MAX];
    }
    pthread_mutex_unlock(&lock);
    return found;
}

long sim_record_count(void) {
    pthread_mutex_lock(&lock);
    long count = record_count;
    pthread_mutex_unlock(&lock);
    return count;
}

void sim_count(const char* function) {
    pthread_mutex_lock(&lock);
    ++tally_of(function)->calls;
    pthread_mutex_unlock(&lock);
}

static struct fault* fault_for(const char* function) {
    for (int i = 0; i < fault_count; ++i) {
        struct fault* fault = &faults[i];
        if (strcmp(fault->function, function) != 0 || fault->count == 0) {
            continue;
        }
        if (fault->skip == 0) {
            --fault->count;
            return fault;
        }
        --fault->skip;
    }
    return NULL;
}

int sim_enter(struct sim_call call, long* result) {
    call.thread = gettid();
    call.device = sim_current_device();
    pthread_mutex_lock(&lock);
    if (!environment_read) {
        read_environment();
    }
    ++tally_of(call.function)->calls;
    records[record_count++ % RECORDS_MAX] = call;
    struct fault* found = fault_for(call.function);
    struct fault fault = found != NULL ? *found : (struct fault){0};
    if (found != NULL) {
        ++tally_of(call.function)->faults;
    }
    if (found != NULL && fault.action == ACT_HOLD) {
        long before = releases;
        ++tally_of(call.function)->held;
        pthread_cond_broadcast(&changed);
        while (releases == before) {
            pthread_cond_wait(&changed, &lock);
        }
    }
    pthread_mutex_unlock(&lock);
    if (found == NULL || fault.action == ACT_HOLD) {
        return 0;
    }
    if (fault.action == ACT_ABORT) {
        abort();
    }
    if (fault.delay_us > 0) {
        usleep((useconds_t)fault.delay_us);
    }
    if (fault.action == ACT_DELAY) {
        return 0;
    }
    *result = fault.result;
    errno = fault.error;
    return 1;
}
