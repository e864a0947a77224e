#define _GNU_SOURCE
#include "hinters.h"

#include "report.h"

#include <pthread.h>
#include <stdlib.h>

struct hinter {
    struct hinters *all;
    pthread_t thread;
    struct plan plan;
    uint64_t first, bytes; /* batches first, first + threads, ... are its own */
};

struct hinters {
    const struct table *table;
    const struct trace *trace;
    enum advice advice;
    uint64_t batch, batches, ahead;
    unsigned threads;
    struct hints *hints;
    struct hinter *members;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t reached;        /* the batch that is gathered */
    unsigned char *advised; /* by batch */
};

static void *run(void *argument)
{
    struct hinter *self = argument;
    struct hinters *all = self->all;
    for (uint64_t number = self->first; number < all->batches; number += all->threads) {
        pthread_mutex_lock(&all->lock);
        while (number > all->reached + all->ahead)
            pthread_cond_wait(&all->moved, &all->lock);
        pthread_mutex_unlock(&all->lock);
        plan_batch(&self->plan, all->table, all->trace, all->batch, number);
        self->bytes += advise(all->table, &self->plan, all->advice, all->hints);
        pthread_mutex_lock(&all->lock);
        all->advised[number] = 1;
        pthread_cond_broadcast(&all->moved);
        pthread_mutex_unlock(&all->lock);
    }
    return NULL;
}

struct hinters *hinters_start(const struct table *table, const struct trace *trace,
                              enum advice advice, unsigned threads, uint64_t batch, uint64_t ahead,
                              struct hints *hints)
{
    struct hinters *all = calloc(1, sizeof *all);
    uint64_t batches = (trace->count - 1) / batch + 1;
    if (!all || !(all->members = calloc(threads, sizeof *all->members)) ||
        !(all->advised = calloc(batches, 1)))
        fail("no memory for %u hinting threads", threads);
    all->table = table;
    all->trace = trace;
    all->advice = advice;
    all->batch = batch;
    all->batches = batches;
    all->ahead = ahead;
    all->threads = threads;
    all->hints = hints;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->moved, NULL);
    for (unsigned i = 0; i < threads; i++) {
        struct hinter *member = &all->members[i];
        member->all = all;
        member->first = i;
        plan_init(&member->plan, batch < trace->count ? batch : trace->count);
        if (pthread_create(&member->thread, NULL, run, member))
            fail("no hinting thread can be started");
    }
    return all;
}

void hinters_reach(struct hinters *all, uint64_t number)
{
    pthread_mutex_lock(&all->lock);
    all->reached = number;
    pthread_cond_broadcast(&all->moved);
    while (!all->advised[number])
        pthread_cond_wait(&all->moved, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

uint64_t hinters_end(struct hinters *all)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < all->threads; i++) {
        pthread_join(all->members[i].thread, NULL);
        bytes += all->members[i].bytes;
    }
    return bytes;
}
