#define _GNU_SOURCE
#include "memory.h"
#include "schedule.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Another process can take some MiB in a millisecond, so a look once a layer would be too seldom;
 * one at a group costs some microseconds, one at the whole machine much more. */
enum { PERIOD_NS = 1000000, MACHINE_EVERY = 32, FORESEEN_TICKS = 4 };

static pthread_t thread;
static atomic_int ended;

/* Pieces at the end of the spread order go first, so that the rest stays spread. */
static struct piece *take_back(void)
{
    struct piece *found = NULL;
    pthread_mutex_lock(&schedule.lock);
    for (size_t i = model.unit_count; i-- > 0 && !found;) {
        struct piece *piece = &schedule.pieces[schedule.spread[i]];
        if (!piece->retained || piece->pins || piece->pending)
            continue;
        found = piece;
        piece->retained = piece->filled = 0;
        schedule.retained--;
    }
    if (!found && schedule.retained == 0)
        schedule.give_up = 1;
    pthread_cond_broadcast(&schedule.moved);
    pthread_mutex_unlock(&schedule.lock);
    return found;
}

static void shrink(uint64_t wanted)
{
    uint64_t returned = 0;
    /* Where all was retained, the buffers become needed now. */
    if (!schedule.slots_touched) {
        policy.buffer_bytes = settings.buffers * schedule.slot_bytes;
        wanted += policy.buffer_bytes;
    }
    schedule.slots_touched = 1;
    for (struct piece *piece; returned < wanted && (piece = take_back());) {
        hint(&policy.hints, "madvise(MADV_DONTNEED)", 1,
             madvise(piece->memory, piece->cost, MADV_DONTNEED));
        returned += piece->cost;
    }
    policy.guard_shrinks += returned > 0;
    policy.guard_returned_bytes += returned;
}

/* On a busy machine the guard must not wait for its turn. Where that is not allowed it runs as
 * any thread, and then a fast taker can be faster than it. */
static void hurry(void)
{
    if (pthread_setschedparam(pthread_self(), SCHED_FIFO, &(struct sched_param){1}))
        setpriority(PRIO_PROCESS, (id_t)gettid(), -20);
}

static void *watch(void *nothing)
{
    hurry();
    uint64_t reserve = settings.reserve_bytes, before = reserve, machine = UINT64_MAX;
    for (unsigned tick = 0; !ended; tick++) {
        nanosleep(&(struct timespec){0, PERIOD_NS}, NULL);
        if (tick % MACHINE_EVERY == 0)
            machine = memory_free_in_machine();
        uint64_t free = memory_free_in_groups(reserve);
        free = machine < free ? machine : free;
        uint64_t foreseen = before > free ? FORESEEN_TICKS * (before - free) : 0;
        if (free < reserve / 2 + foreseen && free < reserve) {
            shrink(reserve - free + foreseen);
            machine = memory_free_in_machine();
        }
        before = free;
    }
    return nothing;
}

void guard_begin(void)
{
    if (pthread_create(&thread, NULL, watch, NULL))
        fail("the guard's thread cannot be started");
}

void guard_end(void)
{
    ended = 1;
    pthread_join(thread, NULL);
}
