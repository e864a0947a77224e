#define _GNU_SOURCE
#include "ring.h"

#include "report.h"

#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef IORING_SETUP_SINGLE_ISSUER /* 6.0; older headers lack the names, older kernels the flags */
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN /* 6.1 */
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

/* A read from its queueing until it is handed back. */
struct flight {
    char *to;
    uint64_t offset, tag;
    uint32_t bytes, done;
    int file;
    unsigned buffer;
};

static unsigned *field(const struct ring *ring, uint32_t offset)
{
    return (unsigned *)((char *)ring->rings + offset);
}

static void *map(const struct ring *ring, uint64_t bytes, off_t what)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, what);
    if (at == MAP_FAILED)
        fail_errno("mapping the io_uring");
    return at;
}

static _Noreturn void no_ring(void)
{
    switch (errno) {
    case ENOSYS:
        unsupported("this kernel has no io_uring (it came with Linux 5.1, or is built without it)");
    case EPERM:
    case EACCES:
        unsupported("io_uring is forbidden here (the sysctl kernel.io_uring_disabled is not 0, or "
                    "a container's seccomp filter refuses it): allow it, or leave this arm out");
    case ENOMEM:
        unsupported("the kernel refuses the memory of an io_uring of this depth: raise the limit "
                    "of locked memory (ulimit -l) or lower --depth");
    default: fail_errno("io_uring_setup");
    }
}

void ring_open(struct ring *ring, unsigned depth)
{
    *ring = (struct ring){.depth = depth, .file = -1};
    struct io_uring_params params = {.flags = IORING_SETUP_SINGLE_ISSUER |
                                              IORING_SETUP_DEFER_TASKRUN};
    ring->fd = (int)syscall(SYS_io_uring_setup, depth, &params);
    if (ring->fd < 0 && errno == EINVAL) {
        params = (struct io_uring_params){0};
        ring->fd = (int)syscall(SYS_io_uring_setup, depth, &params);
    }
    if (ring->fd < 0)
        no_ring();
    /* The second came with IORING_OP_READ, in Linux 5.6. */
    if (!(params.features & IORING_FEAT_SINGLE_MMAP) || !(params.features & IORING_FEAT_RW_CUR_POS))
        unsupported("this kernel's io_uring is too old to read with: Linux 5.6 or later is needed");

    uint64_t sq = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    uint64_t cq = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    ring->rings_bytes = sq > cq ? sq : cq;
    ring->rings = map(ring, ring->rings_bytes, IORING_OFF_SQ_RING);
    ring->sqes_bytes = params.sq_entries * sizeof(struct io_uring_sqe);
    ring->sqes = map(ring, ring->sqes_bytes, IORING_OFF_SQES);
    ring->sq_tail = field(ring, params.sq_off.tail);
    ring->sq_mask = field(ring, params.sq_off.ring_mask);
    ring->sq_array = field(ring, params.sq_off.array);
    ring->cq_head = field(ring, params.cq_off.head);
    ring->cq_tail = field(ring, params.cq_off.tail);
    ring->cq_mask = field(ring, params.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)((char *)ring->rings + params.cq_off.cqes);

    ring->flights = calloc(depth, sizeof *ring->flights);
    ring->free = calloc(depth, sizeof *ring->free);
    if (!ring->flights || !ring->free)
        fail("no memory for %u reads in flight", depth);
    for (ring->frees = 0; ring->frees < depth; ring->frees++)
        ring->free[ring->frees] = depth - 1 - ring->frees;
}

void ring_register(struct ring *ring, int file, const struct iovec *buffers, unsigned count)
{
    if (syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_FILES, &file, 1) < 0)
        fail_errno("io_uring_register(IORING_REGISTER_FILES)");
    ring->file = file;
    if (count == 0)
        return;
    if (syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, buffers, count) < 0) {
        if (errno == ENOMEM)
            unsupported("the buffers of io_uring can't be pinned: raise the limit of locked memory "
                        "(ulimit -l), or lower --depth and --batch");
        fail_errno("io_uring_register(IORING_REGISTER_BUFFERS)");
    }
    ring->has_buffers = 1;
}

/* Queue what is left of a read. */
static void queue(struct ring *ring, unsigned slot)
{
    const struct flight *flight = &ring->flights[slot];
    unsigned tail = *ring->sq_tail, index = tail & *ring->sq_mask;
    struct io_uring_sqe *sqe = &ring->sqes[index];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = ring->has_buffers ? IORING_OP_READ_FIXED : IORING_OP_READ;
    sqe->fd = flight->file;
    if (ring->file >= 0 && ring->file == flight->file) {
        sqe->fd = 0; /* its number among the registered files */
        sqe->flags = IOSQE_FIXED_FILE;
    }
    sqe->addr = (uint64_t)(uintptr_t)(flight->to + flight->done);
    sqe->len = flight->bytes - flight->done;
    sqe->off = flight->offset + flight->done;
    sqe->buf_index = (uint16_t)flight->buffer;
    sqe->user_data = slot;
    ring->sq_array[index] = index;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
    ring->queued++;
}

void ring_read(struct ring *ring, int file, void *to, uint32_t bytes, uint64_t offset,
               unsigned buffer, uint64_t tag)
{
    if (ring->frees == 0)
        fail("more reads than the io_uring's depth of %u", ring->depth);
    unsigned slot = ring->free[--ring->frees];
    ring->flights[slot] = (struct flight){
        .to = to, .offset = offset, .tag = tag, .bytes = bytes, .file = file, .buffer = buffer};
    ring->in_flight++;
    queue(ring, slot);
}

static void enter(struct ring *ring, unsigned wait_for)
{
    for (;;) {
        long taken = syscall(SYS_io_uring_enter, ring->fd, ring->queued, wait_for,
                             IORING_ENTER_GETEVENTS, NULL, 0);
        if (taken >= 0) {
            ring->queued -= (unsigned)taken;
            return;
        }
        /* EAGAIN and EBUSY: the kernel is short of memory or of room for completions just now. */
        if (errno != EINTR && errno != EAGAIN && errno != EBUSY)
            fail_errno("io_uring_enter");
    }
}

void ring_submit(struct ring *ring)
{
    while (ring->queued)
        enter(ring, 0);
}

/* Take one completion out of the queue: 1 if it ends a read, 0 if there was none that does. */
static int take(struct ring *ring, uint64_t *tag, int64_t *result)
{
    for (;;) {
        unsigned head = *ring->cq_head;
        if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE))
            return 0;
        const struct io_uring_cqe *cqe = &ring->cqes[head & *ring->cq_mask];
        unsigned slot = (unsigned)cqe->user_data;
        int32_t got = cqe->res;
        __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
        struct flight *flight = &ring->flights[slot];
        if (got > 0)
            flight->done += (uint32_t)got;
        int again = got == -EINTR || got == -EAGAIN || (got > 0 && flight->done < flight->bytes);
        if (again) {
            queue(ring, slot);
            continue;
        }
        /* A direct read that goes on amid a block is EINVAL: what came before it was the end. */
        int at_end = got >= 0 || (got == -EINVAL && flight->done > 0);
        *result = at_end ? (int64_t)flight->done : got;
        *tag = flight->tag;
        ring->free[ring->frees++] = slot;
        ring->in_flight--;
        return 1;
    }
}

int ring_poll(struct ring *ring, uint64_t *tag, int64_t *result)
{
    if (take(ring, tag, result))
        return 1;
    enter(ring, 0); /* the completions of a ring with DEFER_TASKRUN arrive in here only */
    return take(ring, tag, result);
}

uint64_t ring_next(struct ring *ring, int64_t *result)
{
    if (ring->in_flight == 0)
        fail("waiting for an io_uring without reads");
    uint64_t tag;
    while (!take(ring, &tag, result))
        enter(ring, 1);
    return tag;
}

void ring_close(struct ring *ring)
{
    int64_t result;
    while (ring->in_flight)
        ring_next(ring, &result);
    munmap(ring->sqes, ring->sqes_bytes);
    munmap(ring->rings, ring->rings_bytes);
    close(ring->fd);
    free(ring->flights);
    free(ring->free);
}
