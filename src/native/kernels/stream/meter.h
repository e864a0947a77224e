/*
 * How long `stream` computed, how long reads were in flight, and how long both at once.
 */
#ifndef COLDBENCH_METER_H
#define COLDBENCH_METER_H

struct meter {
    double compute_s, read_s, both_s;
};

/* A computation or a read begins (+1) or ends (-1); in any thread. */
void meter_compute(int change);
void meter_read(int change);

/* The times so far. */
struct meter meter_now(void);

#endif
