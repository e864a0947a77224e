/*
 * The feed of `stream`: which bytes of which files are the layers of a model, cut into units, the
 * steps in which they are read and computed (a whole layer, or a piece of one).
 */
#ifndef COLDBENCH_LAYERS_H
#define COLDBENCH_LAYERS_H

#include <stddef.h>
#include <stdint.h>

/* A row of the matrix that a range is taken for; the last of a range may be shorter. */
enum { ROW_BYTES = 4096 };
/* What O_DIRECT wants offsets, lengths and memory to be multiples of, at most (open(2)). */
enum { ALIGNMENT = 4096 };

struct file {
    const char *name; /* beside the model */
    char *path;
    int fd, direct; /* direct: opened with O_DIRECT, or -1 before files_open_direct */
    uint64_t bytes;
    uint8_t *map; /* the whole file, or NULL before files_map */
};

/* Contiguous weights, and where they lie in an image of their unit in memory. */
struct part {
    struct file *file;
    uint64_t offset, bytes;
    uint64_t at;  /* in the image */
    uint64_t row; /* number of its first row in the layer */
};

/* An aligned read that brings in parts; those that share a page come with one. */
struct extent {
    struct file *file;
    uint64_t offset, bytes; /* the file may end before it does */
    uint64_t at;            /* in the image */
};

struct unit {
    uint64_t layer;
    struct part *parts;
    struct extent *extents;
    size_t part_count, extent_count;
    uint64_t bytes;       /* of weights */
    uint64_t image_bytes; /* what it takes in memory: a multiple of ALIGNMENT */
    int ends_layer;
};

struct model {
    struct file *files;
    struct unit *units; /* in the order of a pass */
    size_t file_count, unit_count;
    uint64_t layers, weights_bytes, largest_image;
};

/* Read the feed, open its files beside `model_path` and check them against it. `piece_bytes`, of
 * whole pages and two of them at least, is the largest image of a unit; 0: a layer is a unit. Ends
 * in fail(). */
struct model layers_read(const char *model_path, const char *feed, uint64_t piece_bytes);

/* Open all files with O_DIRECT too; unsupported() where a filesystem has none. */
void files_open_direct(struct model *model);

/* Map all files whole, for reading. */
void files_map(struct model *model);

/* How much of `extent` the file holds. */
uint64_t extent_held(const struct extent *extent);

/* Read `bytes` at `offset` of `fd`, which is `file` either way opened; fail() on an error and where
 * the file has become shorter. */
void read_whole(const struct file *file, int fd, uint8_t *to, uint64_t bytes, uint64_t offset);

#endif
