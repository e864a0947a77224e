/*
 * A trace: which rows of a table are gathered, in which order. As a file, little-endian:
 * "CBTRACE1"; u64 offset of the table in its file, u64 bytes a row, u64 rows of the table, u64
 * gathers; u32 bytes an index (4 or 8), u32 gathers a token; 256 bytes: the base name of the file
 * that holds the table, padded with NUL; then the indices.
 */
#ifndef COLDBENCH_TRACE_H
#define COLDBENCH_TRACE_H

#include <stdint.h>

struct trace {
    const char *path;
    int file;
    uint64_t table_offset, row_bytes, rows, count;
    uint32_t index_bytes, per_token;
    char name[257];
    void *indices;
};

/* Read the header; fail() names what is wrong with it. `path` may be a pipe. */
void trace_open(struct trace *trace, const char *path);

/* Read the indices and close the file; fail() where there are fewer or more than the header says,
 * and where one lies beyond the table. */
void trace_read_indices(struct trace *trace);

static inline uint64_t trace_row(const struct trace *trace, uint64_t gather)
{
    return trace->index_bytes == 4 ? ((const uint32_t *)trace->indices)[gather]
                                   : ((const uint64_t *)trace->indices)[gather];
}

/* Move the first index by one row, within the table: a gather that must not go unnoticed. */
void trace_mutate(struct trace *trace);

#endif
