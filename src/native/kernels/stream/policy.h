/*
 * How the weights of each unit come into memory: the policies of `stream`.
 *
 * A run is tokens * units positions. For each the main thread asks the policy for the unit's
 * weights, computes, and gives them back. No policy reads for a position past the first token
 * before that is asked for, so that at the end of the first token nothing is in flight and what
 * was read until then belongs to it.
 */
#ifndef COLDBENCH_POLICY_H
#define COLDBENCH_POLICY_H

#include "layers.h"
#include "report.h"

#include <stdint.h>

struct settings {
    const char *model, *feed, *policy;
    uint64_t tokens, budget_bytes, reserve_bytes, read_bytes, piece_bytes;
    unsigned threads, work, buffers, depth;
    int reverse, huge, mutant;
};

struct policy {
    /* The image of the unit at `position`, until it is released; NULL: in the files' mappings. */
    const uint8_t *(*acquire)(uint64_t position);
    void (*release)(uint64_t position);
    /* Stop what runs beside; the figures below are final then. */
    void (*end)(void);

    const char *engine;   /* what reads: "mmap", "pread" or "io_uring" */
    const char *fallback; /* "", "fewer layers" or "mmap" */
    uint64_t buffer_bytes; /* of all buffers */
    uint64_t retained_bytes, retained_layers; /* planned from the budget, at the beginning */
    uint64_t retained_bytes_at_end, retained_layers_at_end;
    uint64_t guard_shrinks, guard_returned_bytes;
    struct hints hints;
};

/* All policies work on these. */
extern struct settings settings;
extern struct model model;
extern struct policy policy;

/* Which unit is computed at `position`. */
const struct unit *unit_at(uint64_t position);
uint64_t positions(void);

/* Each sets `policy` up, or ends in usage(), unsupported() or fail(). */
void mapped_begin(const char *advice); /* "sequential+willneed", or "" */
void buffered_begin(int direct);
void scheduled_begin(int use_ring);

/* A read of at most read_bytes. */
struct chunk {
    const struct file *file;
    uint64_t offset, bytes;
    uint64_t at; /* in the image */
    int whole;   /* its length is aligned: it does not end with the file */
};

/* The chunk at `*at` bytes of the unit's `*extent`th extent, and step on; 0 after the last. */
int next_chunk(const struct unit *unit, size_t *extent, uint64_t *at, struct chunk *chunk);

#endif
