/*
 * What the parts of policy `scheduled` share: the plan (scheduled.c), the readers (fetch.c) and
 * the guard (guard.c).
 *
 * Readers walk the positions ahead of the computation. `head` is the next position that no reader
 * has looked at; the units between the computed one and it are pinned: they stay where they are.
 */
#ifndef COLDBENCH_SCHEDULE_H
#define COLDBENCH_SCHEDULE_H

#include "policy.h"

#include <pthread.h>

/* A unit: retained in memory of its own, or in a buffer, or neither. */
struct piece {
    uint8_t *memory; /* of its own, if retained */
    uint64_t cost;   /* what it takes there */
    int retained, filled;
    int slot;         /* its buffer, or -1 */
    unsigned pins;    /* positions from the computed one up to head that need it */
    unsigned pending; /* reads that have not ended */
};

struct slot {
    uint8_t *memory;
    struct piece *piece; /* whose weights it holds, or NULL */
    uint64_t needed;     /* the position after the last one that a reader found to need it */
};

struct schedule {
    pthread_mutex_t lock;
    pthread_cond_t moved; /* anything below has changed */
    struct piece *pieces; /* [model.unit_count] */
    struct slot *slots;   /* [settings.buffers] */
    size_t *spread;       /* all units, in an order of which each beginning is spread evenly */
    uint64_t slot_bytes;
    size_t retained; /* pieces */
    uint64_t computed, head, head_limit;
    int slots_touched;
    int stop;    /* for the readers */
    int give_up; /* the guard asks for the fall-back to mmap */
};

extern struct schedule schedule;

/* A chunk that a reader has to read, into memory at `to`. */
struct task {
    struct chunk chunk;
    uint8_t *to;
    struct piece *piece;
};

/* The next one: 1; 0 if there is none now (and `wait` is 0), -1 if the reader has to stop. */
int task_take(struct task *task, int wait);
void task_done(const struct task *task);

/* The threads that read: `depth` of them, or one with a ring of that depth whose reads go into the
 * buffers, registered. readers_end lets the reads in flight end. */
void readers_begin(int use_ring);
void readers_end(void);

/* The thread that watches free memory and gives retained pieces back before it is short. */
void guard_begin(void);
void guard_end(void);

#endif
