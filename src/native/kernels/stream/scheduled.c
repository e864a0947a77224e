/*
 * Policy `scheduled`: as many units as the budget allows stay in memory, spread evenly; the others
 * go through a few buffers with O_DIRECT, read while units before them are computed.
 */
#define _GNU_SOURCE
#include "schedule.h"

#include "compute.h"
#include "memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

struct schedule schedule = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

enum { HUGE_BYTES = 2 << 20 };

static struct {
    const struct unit *unit; /* NULL: no unit is being read */
    struct piece *piece;
    uint8_t *image;
    size_t extent;
    uint64_t at;
} cursor;
static uint8_t *arena;
static uint64_t arena_bytes;
static int mapped;

static struct piece *piece_at(uint64_t position)
{
    return &schedule.pieces[unit_at(position) - model.units];
}

/* --- the plan --------------------------------------------------------------------------------- */

/* Numbers with their bits reversed (van der Corput): each beginning is spread evenly. */
static void order_spread(void)
{
    size_t found = 0, power = 1;
    while (power < model.unit_count)
        power *= 2;
    for (size_t i = 0; i < power; i++) {
        size_t number = 0;
        for (size_t bit = 1, other = power / 2; other; bit *= 2, other /= 2)
            number += i & bit ? other : 0;
        if (number < model.unit_count)
            schedule.spread[found++] = number;
    }
}

/* Choose what to retain in `room` bytes: whatever keeps up with an even share of the way so far,
 * then whatever still fits. */
static void plan(uint64_t room, uint64_t all)
{
    uint64_t passed = 0, taken = 0;
    for (size_t i = 0; i < model.unit_count; i++) {
        struct piece *piece = &schedule.pieces[i];
        passed += piece->cost;
        double share = (double)passed / (double)all * (double)room;
        piece->retained = taken + piece->cost <= room &&
                          (double)(taken + piece->cost) <= share + (double)piece->cost / 2;
        taken += piece->retained ? piece->cost : 0;
    }
    for (size_t i = 0; i < model.unit_count; i++) {
        struct piece *piece = &schedule.pieces[schedule.spread[i]];
        if (!piece->retained && taken + piece->cost <= room)
            piece->retained = 1, taken += piece->cost;
    }
}

static void map_retained(void)
{
    arena_bytes = 0;
    for (size_t i = 0; i < model.unit_count; i++)
        arena_bytes += schedule.pieces[i].retained ? schedule.pieces[i].cost : 0;
    if (!arena_bytes)
        return;
    arena = memory_map(arena_bytes, settings.huge, &policy.hints);
    if (!arena)
        fail_errno("no memory of %" PRIu64 " bytes; lower --budget", arena_bytes);
    uint64_t at = 0;
    for (size_t i = 0; i < model.unit_count; i++)
        if (schedule.pieces[i].retained)
            schedule.pieces[i].memory = arena + at, at += schedule.pieces[i].cost;
}

static int there_is(uint64_t bytes)
{
    uint64_t needed = bytes + settings.reserve_bytes / 2;
    return memory_free_in_groups(needed) >= needed && memory_free_in_machine() >= needed;
}

/* Touched at once and not as it is filled, so that the guard sees from the start what is free. */
static int touch_slots(void)
{
    for (unsigned i = 0; i < settings.buffers; i++) {
        if (!there_is(schedule.slot_bytes))
            return 0;
        pool_touch(schedule.slots[i].memory, schedule.slot_bytes);
    }
    schedule.slots_touched = 1;
    return 1;
}

static void touch_retained(void)
{
    int short_of = 0;
    for (size_t i = 0; i < model.unit_count; i++) {
        struct piece *piece = &schedule.pieces[schedule.spread[i]];
        if (!piece->retained)
            continue;
        short_of = short_of || !there_is(piece->cost);
        if (short_of)
            piece->retained = 0, policy.fallback = "fewer layers";
        else
            pool_touch(piece->memory, piece->cost), schedule.retained++;
    }
}

static void count_retained(uint64_t *bytes, uint64_t *layers)
{
    int whole = 1;
    *bytes = *layers = 0;
    for (size_t i = 0; i < model.unit_count; i++) {
        int retained = schedule.pieces[i].retained;
        *bytes += retained ? model.units[i].bytes : 0;
        whole = whole && retained;
        *layers += whole && model.units[i].ends_layer;
        whole = whole || model.units[i].ends_layer;
    }
}

/* --- what readers have to do ------------------------------------------------------------------ */

/* How far readers may be ahead: enough to fill all buffers, but half of a pass at most, since
 * the guard can't have what is pinned. */
static uint64_t lookahead(void)
{
    uint64_t units = model.unit_count, streamed = units - schedule.retained;
    uint64_t most = units / 2 > settings.buffers + 1 ? units / 2 : settings.buffers + 1;
    uint64_t wanted = streamed ? 2 * settings.buffers * units / streamed + 1 : 1;
    return wanted < most ? wanted : most;
}

/* The one needed longest ago: any other choice would keep some layer in its buffer into the next
 * token by chance of timing. */
static struct slot *free_slot(void)
{
    struct slot *found = NULL;
    for (unsigned i = 0; i < settings.buffers; i++) {
        struct slot *slot = &schedule.slots[i];
        if ((!slot->piece || slot->piece->pins == 0) && (!found || slot->needed < found->needed))
            found = slot;
    }
    return found;
}

static void begin_reading(const struct unit *unit, struct piece *piece, uint8_t *image)
{
    struct chunk chunk;
    size_t extent = 0;
    for (uint64_t at = 0; next_chunk(unit, &extent, &at, &chunk);)
        piece->pending++;
    cursor.unit = unit, cursor.piece = piece, cursor.image = image;
    cursor.extent = 0, cursor.at = 0;
}

/* Look at the position at head; 0 if that has to wait. */
static int advance(void)
{
    if (schedule.head >= schedule.head_limit || schedule.head > schedule.computed + lookahead())
        return 0;
    struct piece *piece = piece_at(schedule.head);
    if (piece->retained && !piece->filled) {
        piece->filled = 1; /* or will be, once nothing is pending */
        begin_reading(unit_at(schedule.head), piece, piece->memory);
    } else if (!piece->retained && piece->slot < 0) {
        struct slot *slot = free_slot();
        if (!slot)
            return 0;
        if (slot->piece)
            slot->piece->slot = -1;
        slot->piece = piece;
        piece->slot = (int)(slot - schedule.slots);
        begin_reading(unit_at(schedule.head), piece, slot->memory);
    }
    piece->pins++;
    schedule.head++;
    if (piece->slot >= 0)
        schedule.slots[piece->slot].needed = schedule.head;
    pthread_cond_broadcast(&schedule.moved);
    return 1;
}

int task_take(struct task *task, int wait)
{
    int taken = 0;
    pthread_mutex_lock(&schedule.lock);
    while (!taken) {
        if (schedule.stop)
            taken = -1;
        else if (cursor.unit && next_chunk(cursor.unit, &cursor.extent, &cursor.at, &task->chunk))
            taken = 1;
        else if (cursor.unit = NULL, !advance()) {
            if (!wait)
                break;
            pthread_cond_wait(&schedule.moved, &schedule.lock);
        }
    }
    if (taken > 0)
        task->piece = cursor.piece, task->to = cursor.image + task->chunk.at;
    pthread_mutex_unlock(&schedule.lock);
    return taken;
}

void task_done(const struct task *task)
{
    pthread_mutex_lock(&schedule.lock);
    if (--task->piece->pending == 0)
        pthread_cond_broadcast(&schedule.moved);
    pthread_mutex_unlock(&schedule.lock);
}

/* --- what the computation asks for ------------------------------------------------------------ */

/* The page cache is given up by the kernel itself when memory is short. */
static void fall_back_to_mmap(void)
{
    readers_end();
    for (unsigned i = 0; i < settings.buffers; i++)
        munmap(schedule.slots[i].memory, schedule.slot_bytes);
    if (arena)
        munmap(arena, arena_bytes);
    files_map(&model);
    mapped = 1;
    policy.fallback = "mmap";
}

static const uint8_t *acquire(uint64_t position)
{
    const uint8_t *image = NULL;
    if (mapped)
        return NULL;
    struct piece *piece = piece_at(position);
    pthread_mutex_lock(&schedule.lock);
    if (position >= model.unit_count && schedule.head_limit < positions()) {
        schedule.head_limit = positions();
        pthread_cond_broadcast(&schedule.moved);
    }
    while (!schedule.give_up && (schedule.head <= position || piece->pending))
        pthread_cond_wait(&schedule.moved, &schedule.lock);
    int give_up = schedule.give_up;
    if (!give_up)
        image = piece->retained ? piece->memory : schedule.slots[piece->slot].memory;
    pthread_mutex_unlock(&schedule.lock);
    if (give_up)
        fall_back_to_mmap();
    return image;
}

static void release(uint64_t position)
{
    if (mapped)
        return;
    pthread_mutex_lock(&schedule.lock);
    piece_at(position)->pins--;
    schedule.computed = position + 1;
    pthread_cond_broadcast(&schedule.moved);
    pthread_mutex_unlock(&schedule.lock);
}

static void end(void)
{
    guard_end();
    readers_end();
    count_retained(&policy.retained_bytes_at_end, &policy.retained_layers_at_end);
    if (policy.guard_returned_bytes && !mapped)
        policy.fallback = "fewer layers";
}

static void end_mapped(void)
{
}

static void begin_mapped(void)
{
    files_map(&model);
    mapped = 1;
    policy.fallback = "mmap";
    policy.end = end_mapped;
}

/* --- the beginning ---------------------------------------------------------------------------- */

static void allocate(void)
{
    schedule.pieces = calloc(model.unit_count, sizeof *schedule.pieces);
    schedule.spread = calloc(model.unit_count, sizeof *schedule.spread);
    schedule.slots = calloc(settings.buffers, sizeof *schedule.slots);
    if (!schedule.pieces || !schedule.spread || !schedule.slots)
        fail("no memory for the schedule");
}

static uint64_t cost_pieces(void)
{
    uint64_t all = 0, unit = settings.huge ? HUGE_BYTES : ALIGNMENT;
    for (size_t i = 0; i < model.unit_count; i++) {
        struct piece *piece = &schedule.pieces[i];
        piece->slot = -1;
        piece->cost = (model.units[i].image_bytes + unit - 1) / unit * unit;
        all += piece->cost;
    }
    schedule.slot_bytes = (model.largest_image + unit - 1) / unit * unit;
    return all;
}

void scheduled_begin(int use_ring)
{
    policy.acquire = acquire, policy.release = release, policy.end = end;
    policy.engine = "mmap";
    files_open_direct(&model);
    allocate();
    order_spread();
    uint64_t all = cost_pieces(), slots = settings.buffers * schedule.slot_bytes;
    uint64_t budget = settings.budget_bytes, reserve = settings.reserve_bytes;
    if (budget < reserve + slots && budget < reserve + all)
        unsupported("the budget of %" PRIu64 " bytes is below %u buffers of %" PRIu64
                    " bytes and the reserve of %" PRIu64
                    "; raise the budget, or cut the layers (--piece)",
                    budget, settings.buffers, schedule.slot_bytes, reserve);
    uint64_t free = memory_free_in_groups(budget), machine = memory_free_in_machine();
    free = (machine < free ? machine : free);
    free = free < UINT64_MAX / 2 ? free + memory_own() : free;
    if (free + reserve / 2 < budget) /* others hold part of it */
        budget = free, policy.fallback = "fewer layers";
    int fits = reserve + all <= budget;
    if (!fits && budget < reserve + slots) {
        begin_mapped();
        return;
    }
    plan(fits ? all : budget - reserve - slots, all);
    map_retained();
    for (unsigned i = 0; i < settings.buffers; i++)
        if (!(schedule.slots[i].memory =
                  memory_map(schedule.slot_bytes, settings.huge, &policy.hints)))
            fail_errno("no memory for the buffers");
    if (!fits && !touch_slots()) {
        begin_mapped();
        return;
    }
    touch_retained();
    count_retained(&policy.retained_bytes, &policy.retained_layers);
    policy.buffer_bytes = fits ? 0 : slots;
    schedule.head_limit = model.unit_count;
    guard_begin();
    readers_begin(use_ring && !fits);
}
