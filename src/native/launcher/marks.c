#define _GNU_SOURCE
#include "marks.h"

#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 65536 };

static double monotonic_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int marks_add(struct marks *marks, const char *argument)
{
    const char *text = strchr(argument, ':');
    size_t stream = text ? (size_t)(text - argument) : 0;
    int on_stderr = stream == 6 && strncmp(argument, "stderr", stream) == 0;
    int on_stdout = stream == 6 && strncmp(argument, "stdout", stream) == 0;
    if ((!on_stderr && !on_stdout) || !text[1] || strlen(text) > CHUNK / 2 ||
        marks->count == MARKS)
        return 0;
    marks->all[marks->count++] =
        (struct mark){.text = text + 1, .on_stderr = on_stderr, .file = -1, .seen_s = -1};
    return 1;
}

int marks_begin(struct marks *marks, const char *out, const char *err)
{
    marks->notify = -1;
    if (!marks->count)
        return 0;
    marks->notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (marks->notify < 0)
        return -1;
    for (int i = 0; i < marks->count; i++) {
        struct mark *mark = &marks->all[i];
        const char *path = mark->on_stderr ? err : out;
        mark->file = open(path, O_RDONLY | O_CLOEXEC);
        if (mark->file < 0 || inotify_add_watch(marks->notify, path, IN_MODIFY) < 0)
            return -1;
    }
    if (fcntl(marks->notify, F_SETOWN, getpid()) ||
        fcntl(marks->notify, F_SETFL, O_NONBLOCK | O_ASYNC))
        return -1;
    return 0;
}

/* Whether the text is in what was written since the last look. */
static int has_appeared(struct mark *mark)
{
    static char chunk[CHUNK];
    const size_t length = strlen(mark->text);
    for (;;) {
        ssize_t size = pread(mark->file, chunk, sizeof chunk, mark->after);
        if (size < (ssize_t)length)
            return 0;
        if (memmem(chunk, (size_t)size, mark->text, length))
            return 1;
        mark->after += size - (ssize_t)length + 1; /* it may have begun there */
    }
}

void marks_look(struct marks *marks, double start_s)
{
    if (marks->notify < 0)
        return;
    /* First emptied, then looked: the kernel raises no signal for a write like one in the queue. */
    char events[4096];
    while (read(marks->notify, events, sizeof events) > 0)
        ;
    int left = 0;
    for (int i = 0; i < marks->count; i++) {
        struct mark *mark = &marks->all[i];
        if (mark->file < 0)
            continue;
        if (has_appeared(mark)) {
            mark->seen_s = monotonic_s() - start_s;
            close(mark->file);
            mark->file = -1;
        }
        left += mark->file >= 0;
    }
    if (!left) {
        close(marks->notify);
        marks->notify = -1;
    }
}

void print_marks(FILE *out, const struct marks *marks)
{
    fputc('[', out);
    for (int i = 0; i < marks->count; i++)
        fprintf(out, "%s%.6f", i ? ", " : "", marks->all[i].seen_s);
    fputc(']', out);
}
