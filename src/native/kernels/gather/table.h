/*
 * The table that is gathered from: rows of equal size, one after another in a file, seen as the
 * file's pages. A page is one of the machine's (sysconf(_SC_PAGESIZE)).
 */
#ifndef COLDBENCH_TABLE_H
#define COLDBENCH_TABLE_H

#include "trace.h"

#include <stdint.h>

struct table {
    char *path;
    int file;
    uint64_t file_bytes, offset, bytes, row_bytes, page;
    uint64_t first_page, pages; /* of the file; those that hold the table */
    const char *mapped;         /* the first page's first byte, or NULL */
};

/* Open the file beside `model` that the trace names; fail() unless the whole table lies in it. */
void table_open(struct table *table, const char *model, const struct trace *trace);

/* Map the table's pages, touching none. */
void table_map(struct table *table);

/* A second descriptor that reads past the page cache (O_DIRECT), whole pages at a time;
 * unsupported() where the file system has none of it. */
int table_open_direct(const struct table *table);

/* Bytes of the table's pages that the page cache holds (cachestat(2), or else mincore(2)). */
uint64_t table_resident_bytes(const struct table *table);

/* How many different rows, and pages of the file, the trace touches. */
void table_count_unique(const struct table *table, const struct trace *trace, uint64_t *rows,
                        uint64_t *pages);

static inline uint64_t row_start(const struct table *table, uint64_t row)
{
    return table->offset + row * table->row_bytes; /* in the file */
}

static inline uint64_t row_first_page(const struct table *table, uint64_t row)
{
    return row_start(table, row) / table->page;
}

static inline uint64_t row_last_page(const struct table *table, uint64_t row)
{
    return (row_start(table, row) + table->row_bytes - 1) / table->page;
}

#endif
