#define _GNU_SOURCE
#include "table.h"

#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Linux 6.5; the same on all architectures */
#endif

static char *beside(const char *model, const char *name)
{
    char *copy = strdup(model), *path = NULL;
    if (!copy || asprintf(&path, "%s/%s", dirname(copy), name) < 0)
        fail("no memory for a path");
    free(copy);
    return path;
}

void table_open(struct table *table, const char *model, const struct trace *trace)
{
    *table = (struct table){
        .path = beside(model, trace->name),
        .offset = trace->table_offset,
        .row_bytes = trace->row_bytes,
        .page = (uint64_t)sysconf(_SC_PAGESIZE),
    };
    struct stat facts;
    table->file = open(table->path, O_RDONLY | O_CLOEXEC);
    if (table->file < 0 || fstat(table->file, &facts))
        fail_errno("%s", table->path);
    if (!S_ISREG(facts.st_mode))
        fail("%s: not a regular file", table->path);
    table->file_bytes = (uint64_t)facts.st_size;
    uint64_t end;
    if (__builtin_mul_overflow(trace->rows, trace->row_bytes, &table->bytes) ||
        __builtin_add_overflow(table->offset, table->bytes, &end) || end > table->file_bytes)
        fail("%s: %llu bytes long, but %s tells of a table of %llu rows of %llu bytes from byte "
             "%llu on: the file is cut short, or the trace is another model's",
             table->path, (unsigned long long)table->file_bytes, trace->path,
             (unsigned long long)trace->rows, (unsigned long long)trace->row_bytes,
             (unsigned long long)table->offset);
    table->first_page = table->offset / table->page;
    table->pages = (end - 1) / table->page - table->first_page + 1;
}

static void *map_pages(const struct table *table)
{
    void *at = mmap(NULL, table->pages * table->page, PROT_READ, MAP_SHARED, table->file,
                    (off_t)(table->first_page * table->page));
    if (at == MAP_FAILED)
        fail_errno("mapping %s", table->path);
    return at;
}

void table_map(struct table *table)
{
    table->mapped = map_pages(table);
}

static int in_memory(int file)
{
    struct statfs system;
    return !fstatfs(file, &system) &&
           (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC ||
            system.f_type == HUGETLBFS_MAGIC);
}

int table_open_direct(const struct table *table)
{
    static const char none[] = "%s: its file system has no O_DIRECT (%s): put the file on a disk's "
                               "file system, or leave this arm out";
    /* Since Linux 6.6 tmpfs takes the flag, and then reads from memory all the same. */
    if (in_memory(table->file))
        unsupported(none, table->path, "it is in memory, as tmpfs is");
    /* The same file as ours, whatever bears its name by now. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", table->file);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (file < 0 && errno == EINVAL)
        unsupported(none, table->path, "open: Invalid argument");
    if (file < 0)
        fail_errno("%s with O_DIRECT", table->path);
#ifdef STATX_DIOALIGN
    struct statx facts;
    if (!statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) &&
        (facts.stx_mask & STATX_DIOALIGN)) {
        if (facts.stx_dio_offset_align == 0)
            unsupported(none, table->path, "statx: not for this file");
        if (facts.stx_dio_offset_align > table->page)
            unsupported("%s: its O_DIRECT wants blocks of %u bytes, more than a page: leave this "
                        "arm out",
                        table->path, facts.stx_dio_offset_align);
    }
#endif
    return file;
}

/* As in linux/mman.h of Linux 6.5. */
struct cachestat_range_ {
    uint64_t offset, length;
};
struct cachestat_ {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

uint64_t table_resident_bytes(const struct table *table)
{
    struct cachestat_range_ range = {table->first_page * table->page, table->pages * table->page};
    struct cachestat_ cache;
    if (!syscall(SYS_cachestat, table->file, &range, &cache, 0))
        return cache.cached * table->page;
    unsigned char *pages = malloc(table->pages);
    void *at = map_pages(table);
    if (!pages || mincore(at, table->pages * table->page, pages))
        fail_errno("asking for the cached pages of %s", table->path);
    uint64_t cached = 0;
    for (uint64_t i = 0; i < table->pages; i++)
        cached += pages[i] & 1;
    munmap(at, table->pages * table->page);
    free(pages);
    return cached * table->page;
}

static uint8_t *bits(uint64_t count)
{
    uint8_t *set = calloc(count / 8 + 1, 1);
    if (!set)
        fail("no memory to count the rows and pages");
    return set;
}

/* 1 if `at` was not in the set before. */
static uint64_t add(uint8_t *set, uint64_t at)
{
    uint8_t bit = (uint8_t)(1U << (at % 8));
    uint64_t is_new = !(set[at / 8] & bit);
    set[at / 8] |= bit;
    return is_new;
}

void table_count_unique(const struct table *table, const struct trace *trace, uint64_t *rows,
                        uint64_t *pages)
{
    uint8_t *rows_seen = bits(trace->rows), *pages_seen = bits(table->pages);
    *rows = *pages = 0;
    for (uint64_t i = 0; i < trace->count; i++) {
        uint64_t row = trace_row(trace, i);
        if (!add(rows_seen, row))
            continue;
        ++*rows;
        for (uint64_t page = row_first_page(table, row); page <= row_last_page(table, row); page++)
            *pages += add(pages_seen, page - table->first_page);
    }
    free(rows_seen);
    free(pages_seen);
}
