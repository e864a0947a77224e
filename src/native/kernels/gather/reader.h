/*
 * Reads batches of a table into buffers, several reads in flight at once: by threads with pread(2)
 * or by an io_uring. A slot is a buffer for one batch; slots are filled in the order of the calls.
 */
#ifndef COLDBENCH_READER_H
#define COLDBENCH_READER_H

#include "plan.h"
#include "report.h"
#include "table.h"

#include <stdint.h>

enum reader_kind { BY_THREADS, BY_RING };

struct reader;

/* `slots` buffers of `pages` pages each, `depth` reads in flight. With `direct`, past the page
 * cache, and for io_uring with the buffers registered; else through it, with POSIX_FADV_RANDOM
 * (counted in `hints`) against the kernel's own read-ahead. unsupported() as ring_open,
 * ring_register and table_open_direct say. */
struct reader *reader_open(const struct table *table, enum reader_kind kind, int direct,
                           unsigned depth, unsigned slots, uint64_t pages, struct hints *hints);

/* Begin to read a plan's ranges into a slot that nobody waits for; the plan must stay as it is
 * until reader_wait has returned for the slot. */
void reader_begin(struct reader *reader, unsigned slot, const struct plan *plan);

/* Wait for the slot's pages, which lie in the returned buffer as plan_find() counts them; fail()
 * where one could not be read. */
const char *reader_wait(struct reader *reader, unsigned slot);

/* Bytes asked of the kernel so far. */
uint64_t reader_bytes(const struct reader *reader);

#endif
