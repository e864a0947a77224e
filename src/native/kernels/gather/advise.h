/* Advice to the kernel on the pages of a mapped table (madvise(2), process_madvise(2)). */
#ifndef COLDBENCH_ADVISE_H
#define COLDBENCH_ADVISE_H

#include "plan.h"
#include "report.h"
#include "table.h"

enum advice {
    NO_ADVICE,
    WILLNEED,         /* one MADV_WILLNEED a range: read it in the background */
    WILLNEED_VECTOR,  /* the same by process_madvise, up to 1024 ranges (UIO_MAXIOV) a call */
    POPULATE_READ,    /* one MADV_POPULATE_READ a range: read and map it, and return then */
};

/* MADV_RANDOM on all of the table: no read-ahead around what is touched. */
void advise_random(const struct table *table, struct hints *hints);

/* Advise a plan's ranges; returns the bytes asked for. Calls that fail are counted in `hints`;
 * unsupported() where the kernel does not know the call. */
uint64_t advise(const struct table *table, const struct plan *plan, enum advice advice,
                struct hints *hints);

#endif
