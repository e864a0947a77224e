/* What a batch of gathers needs of a file: its rows sorted and merged to ranges of whole pages. */
#ifndef COLDBENCH_PLAN_H
#define COLDBENCH_PLAN_H

#include "table.h"
#include "trace.h"

#include <stdint.h>

struct range {
    uint64_t page;  /* the first one, of the file */
    uint64_t pages;
    uint64_t at;    /* pages in the ranges before this one */
};

struct plan {
    uint64_t first, count; /* the gathers: [first, first + count) */
    struct range *ranges;  /* ascending, disjoint; those of one row follow each other without gap */
    uint64_t ranges_count, pages;
    uint64_t *sorted; /* rows; room to work in */
    uint64_t room;    /* of `ranges` */
};

/* Room for batches of up to `batch` gathers. */
void plan_init(struct plan *plan, uint64_t batch);

/* Plan the batch of `batch` gathers (fewer at the trace's end) with this number. A range
 * is at most 128 KiB: the kernel quietly cuts a longer MADV_WILLNEED at the device's limits
 * (force_page_cache_ra in mm/readahead.c), and several reads go side by side. */
void plan_batch(struct plan *plan, const struct table *table, const struct trace *trace,
                uint64_t batch, uint64_t number);

/* Where a page of the plan lies, counted in the pages of its ranges. */
uint64_t plan_find(const struct plan *plan, uint64_t page);

/* Bytes of a range that the file holds: its last page may lie at the end. */
uint64_t range_bytes(const struct table *table, const struct range *range);

#endif
