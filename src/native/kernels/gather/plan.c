#define _GNU_SOURCE
#include "plan.h"

#include "report.h"

#include <stdlib.h>

enum { RANGE_BYTES = 128 << 10 };

void plan_init(struct plan *plan, uint64_t batch)
{
    *plan = (struct plan){.room = batch};
    plan->sorted = malloc(batch * sizeof *plan->sorted);
    plan->ranges = malloc(plan->room * sizeof *plan->ranges);
    if (!plan->sorted || !plan->ranges)
        fail("no memory for batches of %llu gathers: lower --batch", (unsigned long long)batch);
}

static int ascending(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* Append the pages first..last, in ranges of up to `most` pages. */
static void append(struct plan *plan, uint64_t first, uint64_t last, uint64_t most)
{
    while (first <= last) {
        struct range *end = plan->ranges_count ? &plan->ranges[plan->ranges_count - 1] : NULL;
        uint64_t more = last - first + 1;
        if (end && end->page + end->pages == first && end->pages < most) {
            more = more < most - end->pages ? more : most - end->pages;
            end->pages += more;
        } else {
            if (plan->ranges_count == plan->room) {
                plan->room *= 2;
                plan->ranges = realloc(plan->ranges, plan->room * sizeof *plan->ranges);
                if (!plan->ranges)
                    fail("no memory for a batch: lower --batch");
            }
            more = more < most ? more : most;
            plan->ranges[plan->ranges_count++] = (struct range){first, more, plan->pages};
        }
        plan->pages += more;
        first += more;
    }
}

void plan_batch(struct plan *plan, const struct table *table, const struct trace *trace,
                uint64_t batch, uint64_t number)
{
    plan->first = number * batch;
    uint64_t left = trace->count - plan->first;
    plan->count = batch < left ? batch : left;
    for (uint64_t i = 0; i < plan->count; i++)
        plan->sorted[i] = trace_row(trace, plan->first + i);
    qsort(plan->sorted, plan->count, sizeof *plan->sorted, ascending);

    uint64_t most = RANGE_BYTES / table->page ? RANGE_BYTES / table->page : 1;
    plan->ranges_count = plan->pages = 0;
    uint64_t next = 0; /* the page after the last one of the plan */
    for (uint64_t i = 0; i < plan->count; i++) {
        uint64_t first = row_first_page(table, plan->sorted[i]);
        uint64_t last = row_last_page(table, plan->sorted[i]);
        append(plan, first > next ? first : next, last, most);
        next = last + 1;
    }
}

uint64_t plan_find(const struct plan *plan, uint64_t page)
{
    const struct range *low = plan->ranges, *high = low + plan->ranges_count;
    while (high - low > 1) {
        const struct range *middle = low + (high - low) / 2;
        if (middle->page <= page)
            low = middle;
        else
            high = middle;
    }
    return low->at + (page - low->page);
}

uint64_t range_bytes(const struct table *table, const struct range *range)
{
    uint64_t start = range->page * table->page, bytes = range->pages * table->page;
    return start + bytes > table->file_bytes ? table->file_bytes - start : bytes;
}
