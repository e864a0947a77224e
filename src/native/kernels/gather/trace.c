#define _GNU_SOURCE
#include "trace.h"

#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "traces are read as they lie in files");

enum { MAGIC_BYTES = 8, NAME_BYTES = 256, HEADER_BYTES = MAGIC_BYTES + 4 * 8 + 2 * 4 + NAME_BYTES };

/* Read up to `bytes`; fewer only at the end. */
static uint64_t read_full(const struct trace *trace, void *to, uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t got = read(trace->file, (char *)to + done, bytes - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail_errno("%s", trace->path);
        if (got == 0)
            break;
        done += (uint64_t)got;
    }
    return done;
}

static void check_header(const struct trace *trace)
{
    const char *path = trace->path;
    if (trace->index_bytes != 4 && trace->index_bytes != 8)
        fail("%s: %u bytes an index; 4 or 8 are possible", path, trace->index_bytes);
    if (trace->rows == 0)
        fail("%s: the table has no rows", path);
    if (trace->row_bytes == 0)
        fail("%s: the rows of the table have no bytes", path);
    if (trace->count == 0)
        fail("%s: the trace holds no gathers", path);
    if (!trace->name[0] || strlen(trace->name) == NAME_BYTES || strchr(trace->name, '/'))
        fail("%s: no base name of the table's file in its header", path);
    struct stat facts;
    uint64_t bytes;
    if (__builtin_mul_overflow(trace->count, (uint64_t)trace->index_bytes, &bytes) ||
        bytes > INT64_MAX - HEADER_BYTES)
        fail("%s: %llu gathers cannot be", path, (unsigned long long)trace->count);
    /* Before memory is taken for what a damaged header asks. */
    if (!fstat(trace->file, &facts) && S_ISREG(facts.st_mode) &&
        (uint64_t)facts.st_size != HEADER_BYTES + bytes)
        fail("%s: %lld bytes long, but its header says %llu: make the trace again", path,
             (long long)facts.st_size, (unsigned long long)(HEADER_BYTES + bytes));
}

void trace_open(struct trace *trace, const char *path)
{
    *trace = (struct trace){.path = path, .file = open(path, O_RDONLY | O_CLOEXEC)};
    if (trace->file < 0)
        fail_errno("%s", path);
    char header[HEADER_BYTES];
    uint64_t got = read_full(trace, header, sizeof header);
    if (got < sizeof header)
        fail("%s: %llu bytes are too few for a trace", path, (unsigned long long)got);
    if (memcmp(header, "CBTRACE1", MAGIC_BYTES) != 0)
        fail("%s: not a trace (it does not begin with CBTRACE1)", path);
    const char *at = header + MAGIC_BYTES;
    memcpy(&trace->table_offset, at, 8);
    memcpy(&trace->row_bytes, at + 8, 8);
    memcpy(&trace->rows, at + 16, 8);
    memcpy(&trace->count, at + 24, 8);
    memcpy(&trace->index_bytes, at + 32, 4);
    memcpy(&trace->per_token, at + 36, 4);
    memcpy(trace->name, at + 40, NAME_BYTES);
    check_header(trace);
}

void trace_read_indices(struct trace *trace)
{
    uint64_t bytes = trace->count * trace->index_bytes;
    trace->indices = malloc(bytes);
    if (!trace->indices)
        fail("%s: no memory for %llu gathers", trace->path, (unsigned long long)trace->count);
    uint64_t got = read_full(trace, trace->indices, bytes);
    if (got < bytes)
        fail("%s: it ends after %llu of %llu gathers: make the trace again", trace->path,
             (unsigned long long)(got / trace->index_bytes), (unsigned long long)trace->count);
    char more;
    if (read_full(trace, &more, 1))
        fail("%s: it goes on after the %llu gathers of its header: make the trace again",
             trace->path, (unsigned long long)trace->count);
    close(trace->file);
    for (uint64_t i = 0; i < trace->count; i++)
        if (trace_row(trace, i) >= trace->rows)
            fail("%s: gather %llu is of row %llu, but the table has %llu rows: was the trace made "
                 "for another model?",
                 trace->path, (unsigned long long)i, (unsigned long long)trace_row(trace, i),
                 (unsigned long long)trace->rows);
}

void trace_mutate(struct trace *trace)
{
    uint64_t row = (trace_row(trace, 0) + 1) % trace->rows;
    if (trace->index_bytes == 4)
        *(uint32_t *)trace->indices = (uint32_t)row;
    else
        *(uint64_t *)trace->indices = row;
}
