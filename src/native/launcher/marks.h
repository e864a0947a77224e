/*
 * Texts that are awaited on the program's two streams, and when each was first there.
 *
 * The kernel tells of every write to a watched stream's file until all texts were seen, so a time
 * is late by one wake-up of this process, and the program is left alone; a stream that nobody asks
 * about is not watched. Sources: inotify(7), fcntl(2) (O_ASYNC).
 */
#ifndef COLDBENCH_MARKS_H
#define COLDBENCH_MARKS_H

#include <stdio.h>
#include <sys/types.h>

enum { MARKS = 4 };

struct mark {
    const char *text;
    int on_stderr;
    int file;      /* the stream's, for reading; -1 once the text was seen */
    off_t after;   /* where the text may still begin */
    double seen_s; /* since the exec; -1 until then */
};

struct marks {
    int notify; /* an inotify instance, -1 where there is none */
    int count;
    struct mark all[MARKS];
};

/* Add "stdout:TEXT" or "stderr:TEXT"; 0 where it is neither, is empty or one too many. */
int marks_add(struct marks *marks, const char *argument);

/* Watch the two files from now on: each write raises SIGIO in this process. -1 with errno set where
 * that cannot be had. */
int marks_begin(struct marks *marks, const char *out, const char *err);

/* Look for what is not there yet. `start_s` is the time of the exec (CLOCK_MONOTONIC). */
void marks_look(struct marks *marks, double start_s);

/* As a JSON list of seconds in the order of the additions, -1 for what never appeared. */
void print_marks(FILE *out, const struct marks *marks);

#endif
