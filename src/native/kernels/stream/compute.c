#include "compute.h"

#include "report.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx2", "default")))
#else
#define CLONES
#endif

enum { BLOCK_ROWS = 32, TOUCH_BYTES = 4 << 20, PAGE = 4096 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t begun, ended;
    unsigned threads, running;
    uint64_t round;
    void (*work)(void *);
    void *argument;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .begun = PTHREAD_COND_INITIALIZER,
          .ended = PTHREAD_COND_INITIALIZER,
          .threads = 1};

static void *serve(void *nothing)
{
    (void)nothing;
    pthread_mutex_lock(&pool.lock);
    for (uint64_t served = 0;; served++) {
        while (pool.round == served)
            pthread_cond_wait(&pool.begun, &pool.lock);
        pthread_mutex_unlock(&pool.lock);
        pool.work(pool.argument);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0)
            pthread_cond_signal(&pool.ended);
    }
    return NULL;
}

void pool_start(unsigned threads)
{
    pool.threads = threads;
    for (unsigned i = 1; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, NULL))
            fail("thread %u of %u cannot be started; lower --threads", i + 1, threads);
        pthread_detach(thread);
    }
}

void pool_run(void (*work)(void *), void *argument)
{
    pthread_mutex_lock(&pool.lock);
    pool.work = work, pool.argument = argument;
    pool.running = pool.threads - 1;
    pool.round++;
    pthread_cond_broadcast(&pool.begun);
    pthread_mutex_unlock(&pool.lock);
    work(argument);
    pthread_mutex_lock(&pool.lock);
    while (pool.running)
        pthread_cond_wait(&pool.ended, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

struct touch {
    uint8_t *memory;
    uint64_t bytes;
    atomic_ullong next;
};

static void touch_blocks(void *argument)
{
    struct touch *touch = argument;
    uint64_t at;
    while ((at = atomic_fetch_add(&touch->next, TOUCH_BYTES)) < touch->bytes) {
        uint64_t end = at + TOUCH_BYTES < touch->bytes ? at + TOUCH_BYTES : touch->bytes;
        for (; at < end; at += PAGE)
            ((volatile uint8_t *)touch->memory)[at] = 0;
    }
}

void pool_touch(uint8_t *memory, uint64_t bytes)
{
    struct touch touch = {.memory = memory, .bytes = bytes};
    pool_run(touch_blocks, &touch);
}

uint64_t mixed(uint64_t value)
{
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

/* A row's sum stays below 4096 * 128 * 128 = 2^26. */
CLONES static int32_t dot(const int8_t *weights, const int16_t *x, size_t count)
{
    int32_t sum = 0;
    for (size_t j = 0; j < count; j++)
        sum += (int16_t)weights[j] * x[j];
    return sum;
}

struct product {
    const struct unit *unit;
    const uint8_t *image;
    const int16_t *x; /* [work][ROW_BYTES] */
    unsigned work;
    int mutant;
    atomic_ullong next, sum;
};

static uint64_t rows_of(const struct product *product, const struct part *part, uint64_t row,
                        uint64_t end)
{
    const uint8_t *weights =
        product->image ? product->image + part->at : part->file->map + part->offset;
    const struct unit *unit = product->unit;
    uint64_t bytes = part->bytes, sum = 0;
    if (product->mutant && unit->ends_layer && part == &unit->parts[unit->part_count - 1])
        bytes--;
    for (; row < end; row++) {
        uint64_t from = row * ROW_BYTES, left = bytes - from;
        size_t count = left < ROW_BYTES ? left : ROW_BYTES;
        int64_t y = 0;
        for (unsigned pass = 0; pass < product->work; pass++)
            y += dot((const int8_t *)weights + from, product->x + pass * ROW_BYTES, count);
        sum += mixed((uint64_t)y ^ mixed(unit->layer << 40 ^ (part->row + row)));
    }
    return sum;
}

/* Blocks are counted through all parts of the unit; a thread takes the next one, and since those
 * numbers only rise, walks the parts once. */
static void multiply(void *argument)
{
    struct product *product = argument;
    const struct unit *unit = product->unit;
    uint64_t first = 0, sum = 0, block = atomic_fetch_add(&product->next, 1);
    for (size_t i = 0; i < unit->part_count; i++) {
        const struct part *part = &unit->parts[i];
        uint64_t rows = (part->bytes + ROW_BYTES - 1) / ROW_BYTES;
        uint64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
        for (; block < first + blocks; block = atomic_fetch_add(&product->next, 1)) {
            uint64_t row = (block - first) * BLOCK_ROWS, end = row + BLOCK_ROWS;
            sum += rows_of(product, part, row, end < rows ? end : rows);
        }
        first += blocks;
    }
    atomic_fetch_add(&product->sum, sum);
}

/* The activations of a layer, kept from one piece of it to the next. */
static const int16_t *activations(uint64_t token, uint64_t layer, unsigned work)
{
    static int16_t *x;
    static uint64_t of_token = UINT64_MAX, of_layer;
    if (!x && !(x = malloc(sizeof *x * work * ROW_BYTES)))
        fail("no memory for %u activations; lower --work", work);
    if (token != of_token || layer != of_layer)
        for (unsigned pass = 0; pass < work; pass++)
            for (uint64_t j = 0; j < ROW_BYTES; j++)
                x[pass * ROW_BYTES + j] =
                    (int8_t)(mixed((token << 40 ^ layer << 16 ^ pass) << 12 ^ j) >> 56);
    of_token = token, of_layer = layer;
    return x;
}

uint64_t compute_unit(const struct unit *unit, const uint8_t *image, uint64_t token, unsigned work,
                      int mutant)
{
    struct product product = {.unit = unit,
                              .image = image,
                              .x = activations(token, unit->layer, work),
                              .work = work,
                              .mutant = mutant};
    pool_run(multiply, &product);
    return atomic_load(&product.sum);
}
