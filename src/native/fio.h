/* The device's own limit: fio's random reads of 4 KiB with O_DIRECT, in the table's range. */
#ifndef COLDBENCH_FIO_H
#define COLDBENCH_FIO_H

#include "table.h"

#include <stdint.h>

struct fio_result {
    char version[64];
    uint64_t reads, bytes;
    double seconds; /* fio's runtime, of which it says whole milliseconds */
    double iops;
};

/* Let the fio of the PATH read `reads` different blocks of the table's range (all of them, if they
 * are fewer), `depth` in flight, in an order with a fixed seed; unsupported() without fio or
 * O_DIRECT, fail() where it fails. */
struct fio_result fio_randread(const struct table *table, uint64_t reads, unsigned depth);

#endif
