#define _GNU_SOURCE
#include "memory.h"

#include "report.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GROUPS = 16, TEXT_BYTES = 8192, HUGE_BYTES = 2 << 20 };

struct group {
    int limit, usage, statistics;
};

static struct group groups[GROUPS];
static size_t group_count;
static const char *inactive, *active; /* the statistics' names of page cache */
static int meminfo;

static int read_text(int file, char *text)
{
    ssize_t got = pread(file, text, TEXT_BYTES - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

/* "max", and what version 1 says for none, become a number too large to matter. */
static uint64_t read_number(int file)
{
    char text[TEXT_BYTES];
    if (!read_text(file, text) || !strncmp(text, "max", 3))
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

static uint64_t number_after(const char *text, const char *name)
{
    for (const char *at = text; (at = strstr(at, name)); at++)
        if (at == text || at[-1] == '\n')
            return strtoull(at + strlen(name), NULL, 10);
    return 0;
}

static int open_in(const char *folder, const char *name)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int add_group(const char *folder, int version)
{
    struct group *group = &groups[group_count];
    group->limit = open_in(folder, version == 1 ? "memory.limit_in_bytes" : "memory.max");
    group->usage = open_in(folder, version == 1 ? "memory.usage_in_bytes" : "memory.current");
    group->statistics = open_in(folder, "memory.stat");
    if (group->limit >= 0 && group->usage >= 0 && group->statistics >= 0) {
        group_count++;
        return 1;
    }
    close(group->limit), close(group->usage), close(group->statistics);
    return 0;
}

/* This process's group in the tree of `controllers` ("" is version 2's); 0 if it is in none. */
static int own_group(const char *controllers, char *path)
{
    char line[PATH_MAX + 256];
    int found = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *own = names ? strchr(names + 1, ':') : NULL;
        if (!own)
            continue;
        *own++ = '\0';
        for (char *save, *name = strtok_r(names + 1, ",", &save); name && !found;
             name = strtok_r(NULL, ",", &save))
            found = !strcmp(name, controllers);
        if (!*controllers && names[1] == '\0')
            found = 1;
        if (found)
            snprintf(path, PATH_MAX, "%s", own);
    }
    if (file)
        fclose(file);
    return found;
}

/* The mount of a tree, and which group of it is the mount's root (in a container not "/"). */
static int find_mount(int version, char *mount, char *root)
{
    char line[2 * PATH_MAX + 512];
    int found = 0;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        char options[512] = "", type[64] = "", *rest = strstr(line, " - ");
        if (!rest || sscanf(line, "%*s %*s %*s %4095s %4095s", root, mount) != 2 ||
            sscanf(rest, " - %63s %*s %511s", type, options) != 2)
            continue;
        if (version == 2)
            found = !strcmp(type, "cgroup2");
        else if (!strcmp(type, "cgroup"))
            for (char *save, *name = strtok_r(options, ",\n", &save); name && !found;
                 name = strtok_r(NULL, ",\n", &save))
                found = !strcmp(name, "memory");
    }
    if (file)
        fclose(file);
    return found;
}

static void find_groups(int version)
{
    char own[PATH_MAX], mount[PATH_MAX], root[PATH_MAX], folder[2 * PATH_MAX];
    if (!own_group(version == 1 ? "memory" : "", own) || !find_mount(version, mount, root))
        return;
    size_t above = strcmp(root, "/") ? strlen(root) : 0;
    if (strncmp(own, root, above)) /* the mount shows another part of the tree */
        above = strlen(own);
    snprintf(folder, sizeof folder, "%s%s", mount, own + above);
    for (size_t end = strlen(folder); group_count < GROUPS; folder[end] = '\0') {
        while (end > strlen(mount) && folder[end - 1] == '/')
            folder[--end] = '\0';
        add_group(folder, version);
        if (end <= strlen(mount))
            return;
        while (folder[end - 1] != '/')
            end--;
    }
}

void memory_begin(void)
{
    find_groups(1);
    inactive = "total_inactive_file ", active = "total_active_file ";
    if (!group_count) {
        find_groups(2);
        inactive = "inactive_file ", active = "active_file ";
    }
    meminfo = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    if (meminfo < 0 || memory_free_in_machine() == 0)
        fail("/proc/meminfo: no MemAvailable there; is /proc mounted?");
}

uint64_t memory_limit(void)
{
    uint64_t least = memory_free_in_machine();
    for (size_t i = 0; i < group_count; i++) {
        uint64_t limit = read_number(groups[i].limit);
        least = limit < least ? limit : least;
    }
    return least;
}

uint64_t memory_free_in_groups(uint64_t enough)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < group_count; i++) {
        uint64_t limit = read_number(groups[i].limit), usage = read_number(groups[i].usage);
        if (limit > INT64_MAX / 2)
            continue;
        uint64_t free = usage < limit ? limit - usage : 0;
        char text[TEXT_BYTES];
        if (free < enough && read_text(groups[i].statistics, text)) {
            uint64_t cache = number_after(text, inactive) + number_after(text, active);
            free = limit + cache > usage ? limit + cache - usage : 0;
        }
        least = free < least ? free : least;
    }
    return least;
}

uint64_t memory_free_in_machine(void)
{
    char text[TEXT_BYTES];
    return read_text(meminfo, text) ? number_after(text, "MemAvailable:") << 10 : 0;
}

uint64_t memory_own(void)
{
    char text[TEXT_BYTES];
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    uint64_t pages = 0;
    if (file < 0 || !read_text(file, text) || sscanf(text, "%*u %" SCNu64, &pages) != 1)
        fail_errno("/proc/self/statm");
    close(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint8_t *memory_map(uint64_t bytes, int huge, struct hints *hints)
{
    uint64_t spare = huge ? HUGE_BYTES : 0;
    uint8_t *memory = mmap(NULL, bytes + spare, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (huge) {
        memory += -(uintptr_t)memory % HUGE_BYTES;
        hint(hints, "madvise(MADV_HUGEPAGE)", 1, madvise(memory, bytes, MADV_HUGEPAGE));
    }
    return memory;
}
