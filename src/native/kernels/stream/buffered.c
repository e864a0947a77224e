/*
 * Policies `read` and `direct`: each unit is read into one buffer, then computed.
 */
#include "policy.h"

#include "memory.h"
#include "meter.h"

#include <inttypes.h>

static uint8_t *buffer;
static int use_direct;

int next_chunk(const struct unit *unit, size_t *extent, uint64_t *at, struct chunk *chunk)
{
    while (*extent < unit->extent_count && *at >= extent_held(&unit->extents[*extent]))
        ++*extent, *at = 0;
    if (*extent == unit->extent_count)
        return 0;
    const struct extent *from = &unit->extents[*extent];
    uint64_t left = extent_held(from) - *at;
    *chunk = (struct chunk){from->file, from->offset + *at, left, from->at + *at, 0};
    if (left > settings.read_bytes)
        chunk->bytes = settings.read_bytes;
    chunk->whole = chunk->bytes % ALIGNMENT == 0;
    *at += chunk->bytes;
    return 1;
}

static void read_unit(const struct unit *unit, uint8_t *image, int direct)
{
    struct chunk chunk;
    size_t extent = 0;
    meter_read(1);
    for (uint64_t at = 0; next_chunk(unit, &extent, &at, &chunk);)
        read_whole(chunk.file, direct ? chunk.file->direct : chunk.file->fd, image + chunk.at,
                   chunk.bytes, chunk.offset);
    meter_read(-1);
}

static const uint8_t *acquire(uint64_t position)
{
    read_unit(unit_at(position), buffer, use_direct);
    return buffer;
}

static void release(uint64_t position)
{
    (void)position;
}

static void end(void)
{
}

void buffered_begin(int direct)
{
    use_direct = direct;
    if (direct)
        files_open_direct(&model);
    if (settings.budget_bytes < settings.reserve_bytes + model.largest_image)
        unsupported("the budget of %" PRIu64 " bytes does not hold a buffer of %" PRIu64
                    " bytes and the reserve of %" PRIu64 "; raise the budget",
                    settings.budget_bytes, model.largest_image, settings.reserve_bytes);
    buffer = memory_map(model.largest_image, settings.huge, &policy.hints);
    if (!buffer)
        fail_errno("no memory for the buffer");
    policy.acquire = acquire, policy.release = release, policy.end = end;
    policy.engine = "pread";
    policy.buffer_bytes = model.largest_image;
}
