/* Threads that give advice ahead of the one that gathers, so that what a hint costs (pages are
 * taken and reads are begun inside the call) is paid on other CPUs. */
#ifndef COLDBENCH_HINTERS_H
#define COLDBENCH_HINTERS_H

#include "advise.h"

#include <stdint.h>

struct hinters;

/* `threads` threads that advise the batches of `batch` gathers, in order, up to `ahead` batches
 * before the one that is gathered. `hints` counts for all of them. fail() where there is no memory
 * or no thread. */
struct hinters *hinters_start(const struct table *table, const struct trace *trace,
                              enum advice advice, unsigned threads, uint64_t batch, uint64_t ahead,
                              struct hints *hints);

/* Say that batch `number` is gathered now, and wait until it was advised. */
void hinters_reach(struct hinters *hinters, uint64_t number);

/* Wait for the threads; returns the bytes that they asked for. */
uint64_t hinters_end(struct hinters *hinters);

#endif
