/*
 * Reads through io_uring by its system calls alone, since liburing is nothing to ask of a machine
 * (io_uring(7), io_uring_enter(2), io_uring_register(2)). Short reads are continued inside; what
 * comes back is whole, but for the file's end.
 *
 * One thread: the one that opened the ring does everything with it.
 */
#ifndef COLDBENCH_RING_H
#define COLDBENCH_RING_H

#include <stdint.h>
#include <sys/uio.h>

struct io_uring_sqe;
struct io_uring_cqe;
struct flight;

struct ring {
    int fd;
    unsigned depth;     /* most reads in flight */
    unsigned in_flight; /* queued or submitted, not yet handed back */
    unsigned queued;    /* not yet submitted */
    int file;           /* the registered one, or -1 */
    int has_buffers;
    struct flight *flights; /* [depth] */
    unsigned *free, frees;  /* slots of `flights` that nobody uses */
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    void *rings;
    uint64_t rings_bytes, sqes_bytes;
};

/* A ring for `depth` (1..32768) reads in flight; unsupported() where the kernel has none, forbids
 * it (kernel.io_uring_disabled, seccomp) or, fail(), lacks memory. */
void ring_open(struct ring *ring, unsigned depth);

/* Register a file and `count` buffers, which all later reads must then lie in; saves the kernel
 * looking up the one and pinning the other at each read. `count` may be 0. Pinned buffers count
 * against RLIMIT_MEMLOCK: unsupported() where that is too low. */
void ring_register(struct ring *ring, int file, const struct iovec *buffers, unsigned count);

/* Queue a read of up to 2 GiB - 4096 bytes; there must be room (in_flight < depth). `buffer` is
 * the number of the registered buffer that [to, to + bytes) lies in, of no account without any.
 * `tag` comes back with the result. Nothing is submitted before ring_submit or ring_next. */
void ring_read(struct ring *ring, int file, void *to, uint32_t bytes, uint64_t offset,
               unsigned buffer, uint64_t tag);

/* Hand all queued reads to the kernel without waiting. */
void ring_submit(struct ring *ring);

/* Wait for a read that has come to its end (submitting first if none has), at least one being in
 * flight. Returns its tag; `*result` is the bytes read, fewer than asked only at the file's end,
 * or -errno. */
uint64_t ring_next(struct ring *ring, int64_t *result);

/* As ring_next if a read has ended already; 0, without waiting, if none has. Queued reads may be
 * submitted. */
int ring_poll(struct ring *ring, uint64_t *tag, int64_t *result);

/* Closes the ring and frees its memory; reads in flight are waited for and their results lost. */
void ring_close(struct ring *ring);

#endif
