/*
 * The arithmetic of `stream`: a matrix-vector product in 8-bit integers over all weights, by a
 * pool of threads. All sums are of integers, so that a token's checksum is the same whatever the
 * threads and the order of the layers.
 */
#ifndef COLDBENCH_COMPUTE_H
#define COLDBENCH_COMPUTE_H

#include "layers.h"

#include <stdint.h>

/* Start the pool; the calling thread is one of the `threads`. */
void pool_start(unsigned threads);

/* Run work(argument) in all threads of the pool at once and wait for them. */
void pool_run(void (*work)(void *), void *argument);

/* Touch each page of fresh memory, so that it is there (and charged) from now on. */
void pool_touch(uint8_t *memory, uint64_t bytes);

/* The well-known mixing step of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom
 * number generators, OOPSLA 2014). */
uint64_t mixed(uint64_t value);

/* The unit's share of the token's checksum, which is the sum over units. Its weights lie in
 * `image`, or in the files' mappings where that is NULL. Row r of layer L yields
 *
 *     y = sum over passes p < work and bytes j of: weight[j] * x(token, L, p, j)
 *     x(token, L, p, j) = top 8 bits, signed, of mixed((token << 40 ^ L << 16 ^ p) << 12 ^ j)
 *
 * and counts as mixed(y ^ mixed(L << 40 ^ r)); all in 64 bits. `mutant` leaves out the last byte of
 * each layer, as a kernel at fault would. */
uint64_t compute_unit(const struct unit *unit, const uint8_t *image, uint64_t token, unsigned work,
                      int mutant);

#endif
