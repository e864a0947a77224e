#define _GNU_SOURCE
#include "memory.h"
#include "meter.h"
#include "ring.h"
#include "schedule.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 64 };

static pthread_t threads[THREADS];
static unsigned started;

static void read_task(const struct task *task)
{
    const struct chunk *chunk = &task->chunk;
    meter_read(1);
    read_whole(chunk->file, chunk->file->direct, task->to, chunk->bytes, chunk->offset);
    meter_read(-1);
    task_done(task);
}

static void *read_by_calls(void *nothing)
{
    for (struct task task; task_take(&task, 1) > 0;)
        read_task(&task);
    return nothing;
}

static void register_slots(struct ring *ring)
{
    struct iovec *buffers = calloc(settings.buffers, sizeof *buffers);
    if (!buffers)
        fail("no memory for the list of buffers");
    for (unsigned i = 0; i < settings.buffers; i++)
        buffers[i] = (struct iovec){schedule.slots[i].memory, schedule.slot_bytes};
    ring_register(ring, model.files[0].direct, buffers, settings.buffers);
    free(buffers);
}

static void end_one(struct ring *ring, struct task *tasks, uint64_t *free_tasks, unsigned *frees)
{
    int64_t result;
    uint64_t number = ring_next(ring, &result);
    const struct task *task = &tasks[number];
    const struct chunk *chunk = &task->chunk;
    meter_read(-1);
    if (result < 0) {
        errno = (int)-result;
        fail_errno("%s: reading at %" PRIu64, chunk->file->path, chunk->offset);
    }
    if ((uint64_t)result < chunk->bytes)
        fail("%s: ends at %" PRIu64 "; it was shortened while it was read", chunk->file->path,
             chunk->offset + (uint64_t)result);
    task_done(task);
    free_tasks[(*frees)++] = number;
}

/* Retained pieces are not read by the ring: a registered buffer stays pinned, and could not be
 * given back by the guard. */
static void *read_by_ring(void *nothing)
{
    struct ring ring;
    ring_open(&ring, settings.depth);
    register_slots(&ring);
    struct task *tasks = calloc(settings.depth, sizeof *tasks);
    uint64_t *free_tasks = calloc(settings.depth, sizeof *free_tasks);
    unsigned frees = settings.depth;
    if (!tasks || !free_tasks)
        fail("no memory for %u reads", settings.depth);
    for (unsigned i = 0; i < settings.depth; i++)
        free_tasks[i] = i;
    for (int taken = 0; taken >= 0;) {
        struct task task;
        taken = frees ? task_take(&task, frees == settings.depth) : 0;
        if (taken <= 0) {
            if (frees < settings.depth)
                end_one(&ring, tasks, free_tasks, &frees);
            continue;
        }
        const struct chunk *chunk = &task.chunk;
        if (task.piece->slot < 0 || !chunk->whole) {
            read_task(&task);
            continue;
        }
        uint64_t number = free_tasks[--frees];
        tasks[number] = task;
        meter_read(1);
        ring_read(&ring, chunk->file->direct, task.to, (uint32_t)chunk->bytes, chunk->offset,
                  (unsigned)task.piece->slot, number);
        ring_submit(&ring);
    }
    while (frees < settings.depth)
        end_one(&ring, tasks, free_tasks, &frees);
    ring_close(&ring);
    free(tasks), free(free_tasks);
    return nothing;
}

void readers_begin(int use_ring)
{
    if (!use_ring && settings.depth > THREADS)
        usage("--depth %u: %d at most, since each is a thread", settings.depth, THREADS);
    policy.engine = use_ring ? "io_uring" : "pread";
    for (started = 0; started < (use_ring ? 1 : settings.depth); started++)
        if (pthread_create(&threads[started], NULL, use_ring ? read_by_ring : read_by_calls, NULL))
            fail("a reader's thread cannot be started; lower --depth");
}

void readers_end(void)
{
    pthread_mutex_lock(&schedule.lock);
    schedule.stop = 1;
    pthread_cond_broadcast(&schedule.moved);
    pthread_mutex_unlock(&schedule.lock);
    for (; started; started--)
        pthread_join(threads[started - 1], NULL);
}
