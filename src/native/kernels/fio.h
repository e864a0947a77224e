/* The device's own limit, measured by fio with O_DIRECT. */
#ifndef COLDBENCH_FIO_H
#define COLDBENCH_FIO_H

#include <stdint.h>

/* Reads of whole blocks in a range of a file. */
struct fio_job {
    const char *path;
    const char *pattern;    /* "randread" (in an order with a fixed seed) or "read" */
    uint64_t offset, bytes; /* multiples of block_bytes, inside the file */
    uint64_t block_bytes;
    uint64_t reads;         /* different blocks, at most all of the range */
    unsigned depth;         /* in flight */
};

struct fio_result {
    char version[64];
    uint64_t reads, bytes;
    double seconds; /* fio's runtime, of which it says whole milliseconds */
    double iops;
};

/* Let the fio of the PATH do the job; unsupported() where there is none, fail() where it fails. */
struct fio_result fio_run(const struct fio_job *job);

#endif
