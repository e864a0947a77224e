/*
 * Policy `mmap`: the files are mapped and the kernel decides what stays, with advice to it
 * (madvise(2)) or without.
 */
#define _GNU_SOURCE
#include "policy.h"

#include "memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum when { AT_START, NOW, AHEAD };
enum { ADVICES = 6, PROBE_BYTES = 2 << 20 };

static const struct advice {
    const char *name, *call;
    int advice;
    enum when when;
    const char *since; /* of Linux, where it may be missing */
} known[ADVICES] = {
    {"sequential", "madvise(MADV_SEQUENTIAL)", MADV_SEQUENTIAL, AT_START, NULL},
    {"random", "madvise(MADV_RANDOM)", MADV_RANDOM, AT_START, NULL},
    {"hugepage", "madvise(MADV_HUGEPAGE)", MADV_HUGEPAGE, AT_START, NULL},
    {"willneed", "madvise(MADV_WILLNEED)", MADV_WILLNEED, AHEAD, NULL},
    {"populate", "madvise(MADV_POPULATE_READ)", MADV_POPULATE_READ, NOW, "5.14"},
    {"collapse", "madvise(MADV_COLLAPSE)", MADV_COLLAPSE, NOW, "6.1"},
};

static int chosen[ADVICES];

static void choose(const char *name, size_t length)
{
    for (int i = 0; i < ADVICES; i++) {
        if (strlen(known[i].name) != length || strncmp(known[i].name, name, length))
            continue;
        if (chosen[i])
            usage("--policy %s: %s twice", settings.policy, known[i].name);
        chosen[i] = 1;
        return;
    }
    usage("--policy %s: no such advice: %.*s; there are sequential, random, hugepage, willneed, "
          "populate and collapse",
          settings.policy, (int)length, name);
}

/* A kernel that lacks an advice gives EINVAL, and so do mappings that it does not fit: on a huge
 * page's worth of memory, its first page touched, both must fit. */
static void probe(const struct advice *advice)
{
    uint8_t *memory = memory_map(PROBE_BYTES, 1, &(struct hints){0});
    if (!memory)
        fail_errno("no memory for a huge page");
    *(volatile uint8_t *)memory = 1;
    if (madvise(memory, PROBE_BYTES, advice->advice) && errno == EINVAL)
        unsupported("%s: this kernel does not have it, or has it switched off; Linux %s or later "
                    "with transparent huge pages is needed",
                    advice->call, advice->since);
    munmap(memory, PROBE_BYTES);
    const struct file *file = &model.files[0];
    uint8_t *inside = file->map + -(uintptr_t)file->map % PROBE_BYTES;
    if (advice->advice == MADV_COLLAPSE && inside + PROBE_BYTES <= file->map + file->bytes &&
        madvise(inside, PROBE_BYTES, advice->advice) && errno == EINVAL)
        unsupported("%s: this kernel does it for memory, but not for files of %s's filesystem; one "
                    "built with CONFIG_READ_ONLY_THP_FOR_FS, or the model on tmpfs, is needed",
                    advice->call, file->path);
}

static void advise_unit(const struct unit *unit, enum when when)
{
    for (int i = 0; i < ADVICES; i++) {
        if (!chosen[i] || known[i].when != when)
            continue;
        for (size_t e = 0; e < unit->extent_count; e++) {
            const struct extent *extent = &unit->extents[e];
            hint(&policy.hints, known[i].call, 1,
                 madvise(extent->file->map + extent->offset, extent_held(extent),
                         known[i].advice));
        }
    }
}

static const uint8_t *acquire(uint64_t position)
{
    /* Where the first token ends, the next layer has to wait until it is asked for. */
    if (position == 0 || position == model.unit_count)
        advise_unit(unit_at(position), AHEAD);
    if (position + 1 < positions() && position + 1 != model.unit_count)
        advise_unit(unit_at(position + 1), AHEAD);
    advise_unit(unit_at(position), NOW);
    return NULL;
}

static void release(uint64_t position)
{
    (void)position;
}

static void end(void)
{
}

void mapped_begin(const char *advice)
{
    while (*advice) {
        size_t length = strcspn(advice, "+");
        choose(advice, length);
        advice += length + (advice[length] == '+');
    }
    if (chosen[0] && chosen[1])
        usage("--policy %s: sequential and random are contrary, the later one would replace the "
              "other",
              settings.policy);
    files_map(&model);
    for (int i = 0; i < ADVICES; i++) {
        if (chosen[i] && known[i].since)
            probe(&known[i]);
        for (size_t f = 0; chosen[i] && known[i].when == AT_START && f < model.file_count; f++)
            hint(&policy.hints, known[i].call, 1,
                 madvise(model.files[f].map, model.files[f].bytes, known[i].advice));
    }
    policy.acquire = acquire, policy.release = release, policy.end = end;
    policy.engine = "mmap";
}
