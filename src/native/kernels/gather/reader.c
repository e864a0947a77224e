#define _GNU_SOURCE
#include "reader.h"

#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

struct slot {
    char *buffer;
    const struct plan *plan;
    uint64_t begun;   /* ranges whose reads have begun */
    uint64_t pending; /* ranges not yet read whole */
};

struct reader {
    const struct table *table;
    enum reader_kind kind;
    int file;
    unsigned slots_count, depth;
    struct slot *slots;
    uint64_t bytes;

    /* The slots with ranges to begin, oldest first: queue[head .. tail), modulo slots_count. */
    unsigned *queue;
    uint64_t head, tail;

    struct ring ring;

    pthread_mutex_t lock; /* of all that changes, BY_THREADS */
    pthread_cond_t work, done;
};

/* The next range to read and its slot's number, in the order of the calls; 0 if there is none. */
static int next_range(struct reader *reader, unsigned *number, const struct range **range)
{
    if (reader->head == reader->tail)
        return 0;
    *number = reader->queue[reader->head % reader->slots_count];
    struct slot *slot = &reader->slots[*number];
    *range = &slot->plan->ranges[slot->begun++];
    if (slot->begun == slot->plan->ranges_count)
        reader->head++;
    reader->bytes += (*range)->pages * reader->table->page;
    return 1;
}

static char *place(const struct reader *reader, unsigned number, const struct range *range)
{
    return reader->slots[number].buffer + range->at * reader->table->page;
}

static void check(const struct reader *reader, const struct range *range, int64_t got)
{
    const struct table *table = reader->table;
    unsigned long long start = range->page * table->page;
    if (got < 0) {
        errno = (int)-got;
        fail_errno("%s: reading at byte %llu", table->path, start);
    }
    if ((uint64_t)got < range_bytes(table, range))
        fail("%s: it ends at byte %llu, amid the table: the file was shortened meanwhile",
             table->path, start + (unsigned long long)got);
}

static int64_t read_range(const struct reader *reader, const struct range *range, char *to)
{
    uint64_t bytes = range->pages * reader->table->page, done = 0;
    off_t start = (off_t)(range->page * reader->table->page);
    while (done < bytes) {
        ssize_t got = pread(reader->file, to + done, bytes - done, start + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && !(errno == EINVAL && done > 0)) /* as in ring.c: the end, amid a block */
            return -errno;
        if (got <= 0)
            break;
        done += (uint64_t)got;
    }
    return (int64_t)done;
}

static void *worker(void *argument)
{
    struct reader *reader = argument;
    unsigned number;
    const struct range *range;
    pthread_mutex_lock(&reader->lock);
    for (;;) {
        while (!next_range(reader, &number, &range))
            pthread_cond_wait(&reader->work, &reader->lock);
        pthread_mutex_unlock(&reader->lock);
        check(reader, range, read_range(reader, range, place(reader, number, range)));
        pthread_mutex_lock(&reader->lock);
        if (--reader->slots[number].pending == 0)
            pthread_cond_signal(&reader->done);
    }
    return NULL;
}

static void start_workers(struct reader *reader)
{
    pthread_mutex_init(&reader->lock, NULL);
    pthread_cond_init(&reader->work, NULL);
    pthread_cond_init(&reader->done, NULL);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    for (unsigned i = 0; i < reader->depth; i++) {
        pthread_t thread; /* never joined: they end with the program */
        int error = pthread_create(&thread, &attributes, worker, reader);
        if (error) {
            errno = error;
            fail_errno("starting thread %u of %u: lower --depth", i + 1, reader->depth);
        }
    }
    pthread_attr_destroy(&attributes);
}

static char *take_buffer(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
                    -1, 0);
    if (at == MAP_FAILED)
        fail_errno("no memory for a buffer of %llu bytes: lower --batch or --ahead",
                   (unsigned long long)bytes);
    return at;
}

static int open_file(const struct table *table, int direct, struct hints *hints)
{
    if (direct)
        return table_open_direct(table);
    /* Else each buffered read begins a read-ahead of its own. */
    errno = posix_fadvise(table->file, 0, 0, POSIX_FADV_RANDOM);
    hint(hints, "posix_fadvise(POSIX_FADV_RANDOM)", 1, errno != 0);
    return table->file;
}

struct reader *reader_open(const struct table *table, enum reader_kind kind, int direct,
                           unsigned depth, unsigned slots, uint64_t pages, struct hints *hints)
{
    struct reader *reader = calloc(1, sizeof *reader);
    struct iovec *buffers = calloc(slots, sizeof *buffers);
    if (!reader || !buffers || !(reader->slots = calloc(slots, sizeof *reader->slots)) ||
        !(reader->queue = calloc(slots, sizeof *reader->queue)))
        fail("no memory for %u batches: lower --ahead", slots);
    reader->table = table;
    reader->kind = kind;
    reader->depth = depth;
    reader->slots_count = slots;
    reader->file = open_file(table, direct, hints);
    for (unsigned i = 0; i < slots; i++) {
        reader->slots[i].buffer = take_buffer(pages * table->page);
        buffers[i] = (struct iovec){reader->slots[i].buffer, pages * table->page};
    }
    if (kind == BY_RING) {
        ring_open(&reader->ring, depth);
        ring_register(&reader->ring, reader->file, buffers, direct ? slots : 0);
    } else {
        start_workers(reader);
    }
    free(buffers);
    return reader;
}

/* Keep the ring full. The tag of a read is its slot's number and the range's. */
static void fill_ring(struct reader *reader)
{
    unsigned number;
    const struct range *range;
    while (reader->ring.in_flight < reader->depth && next_range(reader, &number, &range)) {
        uint64_t index = (uint64_t)(range - reader->slots[number].plan->ranges);
        ring_read(&reader->ring, reader->file, place(reader, number, range),
                  (uint32_t)(range->pages * reader->table->page), range->page * reader->table->page,
                  number, (uint64_t)number << 32 | index);
    }
}

void reader_begin(struct reader *reader, unsigned slot, const struct plan *plan)
{
    if (reader->kind == BY_THREADS)
        pthread_mutex_lock(&reader->lock);
    struct slot *at = &reader->slots[slot];
    *at = (struct slot){.buffer = at->buffer, .plan = plan, .pending = plan->ranges_count};
    reader->queue[reader->tail++ % reader->slots_count] = slot;
    if (reader->kind == BY_THREADS) {
        pthread_cond_broadcast(&reader->work);
        pthread_mutex_unlock(&reader->lock);
    } else {
        fill_ring(reader);
        ring_submit(&reader->ring);
    }
}

const char *reader_wait(struct reader *reader, unsigned slot)
{
    struct slot *at = &reader->slots[slot];
    if (reader->kind == BY_THREADS) {
        pthread_mutex_lock(&reader->lock);
        while (at->pending)
            pthread_cond_wait(&reader->done, &reader->lock);
        pthread_mutex_unlock(&reader->lock);
        return at->buffer;
    }
    while (at->pending) {
        int64_t got;
        uint64_t tag = ring_next(&reader->ring, &got);
        struct slot *of = &reader->slots[tag >> 32];
        check(reader, &of->plan->ranges[(uint32_t)tag], got);
        of->pending--;
        fill_ring(reader);
        /* Several at a time: a submission costs a system call and a knock at the device. */
        if (reader->ring.queued * 4 >= reader->depth)
            ring_submit(&reader->ring);
    }
    ring_submit(&reader->ring);
    return at->buffer;
}

uint64_t reader_bytes(const struct reader *reader)
{
    return reader->bytes;
}
