#define _GNU_SOURCE
#include "layers.h"

#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static void *grown(void *items, size_t count, size_t size)
{
    if (count & (count - 1)) /* room for the next power of two is there already */
        return items;
    void *more = realloc(items, (count ? 2 * count : 1) * size);
    if (!more)
        fail("no memory for the layers");
    return more;
}

static struct file open_beside(const char *model_path, const char *name)
{
    const char *slash = strrchr(model_path, '/');
    int folder = slash ? (int)(slash - model_path) + 1 : 0;
    struct file file = {.name = strdup(name), .direct = -1};
    if (!file.name || asprintf(&file.path, "%.*s%s", folder, model_path, name) < 0)
        fail("no memory for the layers");
    file.fd = open(file.path, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (file.fd < 0 || fstat(file.fd, &facts))
        fail_errno("%s", file.path);
    if (!S_ISREG(facts.st_mode))
        fail("%s: not a regular file", file.path);
    file.bytes = (uint64_t)facts.st_size;
    return file;
}

/* Files are few, and found by number since their array moves as it grows. */
static size_t file_named(struct model *model, const char *model_path, const char *name)
{
    for (size_t i = 0; i < model->file_count; i++)
        if (!strcmp(model->files[i].name, name))
            return i;
    model->files = grown(model->files, model->file_count, sizeof *model->files);
    model->files[model->file_count] = open_beside(model_path, name);
    return model->file_count++;
}

struct range {
    uint64_t layer, offset, bytes;
    size_t file;
};

static struct range parse_range(struct model *model, const char *model_path, const char *feed,
                                uint64_t number, char *line)
{
    struct range range;
    int name = 0;
    line[strcspn(line, "\n")] = '\0';
    if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64 " %n", &range.layer, &range.offset,
               &range.bytes, &name) != 3 ||
        !name || !line[name] || strspn(line, "0123456789 ") < (size_t)name ||
        strchr(line + name, '/'))
        fail("%s: line %" PRIu64 " is not `LAYER OFFSET BYTES BASENAME`", feed, number);
    if (range.bytes == 0)
        fail("%s: line %" PRIu64 " has a range of no bytes", feed, number);
    range.file = file_named(model, model_path, line + name);
    const struct file *file = &model->files[range.file];
    if (range.offset > file->bytes || range.bytes > file->bytes - range.offset)
        fail("%s: holds %" PRIu64 " bytes, but the feed's line %" PRIu64 " wants %" PRIu64
             " bytes at %" PRIu64 "; the file is cut short, or the feed is of another one",
             file->path, file->bytes, number, range.bytes, range.offset);
    return range;
}

static uint64_t page_of(uint64_t offset)
{
    return offset & ~(uint64_t)(ALIGNMENT - 1);
}

/* The unit's last extent, if a part at `offset` begins in it or where it ends. */
static struct extent *extent_for(const struct unit *unit, const struct file *file, uint64_t offset)
{
    struct extent *last = unit->extent_count ? &unit->extents[unit->extent_count - 1] : NULL;
    int joins = last && last->file == file && page_of(offset) >= last->offset &&
                page_of(offset) <= last->offset + last->bytes;
    return joins ? last : NULL;
}

/* How many bytes at `offset` the unit's image can take in before it is larger than `most`. */
static uint64_t room_in(const struct unit *unit, const struct file *file, uint64_t offset,
                        uint64_t most)
{
    const struct extent *last = extent_for(unit, file, offset);
    uint64_t from = last ? last->at + (offset - last->offset)
                         : unit->image_bytes + (offset - page_of(offset));
    return from < most ? most - from : 0;
}

static void add_part(struct unit *unit, struct file *file, uint64_t offset, uint64_t bytes,
                     uint64_t row)
{
    uint64_t end = page_of(offset + bytes + ALIGNMENT - 1);
    struct extent *extent = extent_for(unit, file, offset);
    if (!extent) {
        unit->extents = grown(unit->extents, unit->extent_count, sizeof *unit->extents);
        extent = &unit->extents[unit->extent_count++];
        *extent = (struct extent){file, page_of(offset), 0, unit->image_bytes};
    }
    if (end > extent->offset + extent->bytes)
        extent->bytes = end - extent->offset;
    unit->image_bytes = extent->at + extent->bytes;
    unit->parts = grown(unit->parts, unit->part_count, sizeof *unit->parts);
    unit->parts[unit->part_count++] =
        (struct part){file, offset, bytes, extent->at + (offset - extent->offset), row};
    unit->bytes += bytes;
}

static struct unit *begin_unit(struct model *model, uint64_t layer)
{
    model->units = grown(model->units, model->unit_count, sizeof *model->units);
    struct unit *unit = &model->units[model->unit_count++];
    *unit = (struct unit){.layer = layer};
    return unit;
}

static void cut_layer(struct model *model, const struct range *ranges, size_t count,
                      uint64_t piece_bytes)
{
    struct unit *unit = begin_unit(model, ranges[0].layer);
    uint64_t row = 0;
    for (size_t i = 0; i < count; i++) {
        const struct range *range = &ranges[i];
        struct file *file = &model->files[range->file];
        for (uint64_t done = 0; done < range->bytes;) {
            uint64_t offset = range->offset + done, bytes = range->bytes - done;
            uint64_t room = room_in(unit, file, offset, piece_bytes);
            if (room < bytes)
                bytes = room - room % ROW_BYTES; /* whole rows, but for the range's last one */
            if (bytes == 0) {
                unit = begin_unit(model, range->layer);
                continue;
            }
            add_part(unit, file, offset, bytes, row);
            row += (bytes + ROW_BYTES - 1) / ROW_BYTES;
            done += bytes;
        }
    }
    unit->ends_layer = 1;
}

static struct range *parse(struct model *model, const char *model_path, const char *feed,
                           uint64_t *count)
{
    FILE *text = fopen(feed, "re");
    if (!text)
        fail_errno("%s", feed);
    char line[64 + PATH_MAX];
    int end = 0;
    if (!fgets(line, sizeof line, text) ||
        sscanf(line, "CBLAYERS1 %" SCNu64 " %" SCNu64 "%n", &model->layers, count, &end) != 2 ||
        strcmp(line + end, "\n"))
        fail("%s: does not begin with `CBLAYERS1 LAYERS RANGES`", feed);
    struct range *ranges = NULL;
    uint64_t found = 0;
    while (fgets(line, sizeof line, text)) {
        ranges = grown(ranges, found, sizeof *ranges);
        ranges[found] = parse_range(model, model_path, feed, found + 2, line);
        uint64_t last = found ? ranges[found - 1].layer : 0, layer = ranges[found].layer;
        if (layer != last && (!found || layer != last + 1))
            fail("%s: line %" PRIu64 " is of layer %" PRIu64 ", after layer %" PRIu64
                 "; layers count up from 0",
                 feed, found + 2, layer, last);
        found++;
    }
    if (ferror(text) || fclose(text))
        fail_errno("%s", feed);
    if (found == 0 || found != *count || ranges[found - 1].layer + 1 != model->layers)
        fail("%s: its first line promises %" PRIu64 " layers in %" PRIu64 " ranges, but %" PRIu64
             " layers in %" PRIu64 " ranges are there",
             feed, model->layers, *count, found ? ranges[found - 1].layer + 1 : 0, found);
    return ranges;
}

struct model layers_read(const char *model_path, const char *feed, uint64_t piece_bytes)
{
    struct model model = {0};
    uint64_t count;
    struct range *ranges = parse(&model, model_path, feed, &count);
    for (uint64_t first = 0, next; first < count; first = next) {
        for (next = first; next < count && ranges[next].layer == ranges[first].layer; next++)
            model.weights_bytes += ranges[next].bytes;
        cut_layer(&model, ranges + first, next - first, piece_bytes ? piece_bytes : INT64_MAX);
    }
    free(ranges);
    for (size_t i = 0; i < model.unit_count; i++)
        if (model.units[i].image_bytes > model.largest_image)
            model.largest_image = model.units[i].image_bytes;
    return model;
}

void files_open_direct(struct model *model)
{
    static uint8_t page[ALIGNMENT] __attribute__((aligned(ALIGNMENT)));
    for (size_t i = 0; i < model->file_count; i++) {
        struct file *file = &model->files[i];
        struct statfs system;
        /* It takes the flag since Linux 6.6, but has no device to read from. */
        int in_memory = fstatfs(file->fd, &system) == 0 &&
                        (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
        file->direct = in_memory ? -1 : open(file->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
        if (file->direct < 0 && !in_memory && errno != EINVAL)
            fail_errno("%s", file->path);
        if (file->direct < 0 || (pread(file->direct, page, sizeof page, 0) < 0 && errno == EINVAL))
            unsupported("%s: its filesystem has no O_DIRECT for reads of %d bytes; put the model "
                        "on a disk with ext4, xfs or btrfs",
                        file->path, ALIGNMENT);
    }
}

void files_map(struct model *model)
{
    for (size_t i = 0; i < model->file_count; i++) {
        struct file *file = &model->files[i];
        file->map = mmap(NULL, file->bytes, PROT_READ, MAP_SHARED, file->fd, 0);
        if (file->map == MAP_FAILED)
            fail_errno("%s: cannot be mapped", file->path);
    }
}

uint64_t extent_held(const struct extent *extent)
{
    uint64_t left = extent->file->bytes - extent->offset;
    return left < extent->bytes ? left : extent->bytes;
}

void read_whole(const struct file *file, int fd, uint8_t *to, uint64_t bytes, uint64_t offset)
{
    while (bytes) {
        /* With O_DIRECT the length is whole blocks, past the end of the file too. */
        uint64_t asked = (bytes + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
        ssize_t got = pread(fd, to, fd == file->direct ? asked : bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail_errno("%s: reading at %" PRIu64, file->path, offset);
        if (got == 0)
            fail("%s: ends at %" PRIu64 "; it was shortened while it was read", file->path, offset);
        uint64_t counted = (uint64_t)got < bytes ? (uint64_t)got : bytes;
        to += counted, offset += counted, bytes -= counted;
    }
}
