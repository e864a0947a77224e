#define _GNU_SOURCE
#include "fio.h"

#include "report.h"

#include <errno.h>
#include <limits.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS = 24, ARGUMENT_BYTES = 64, NOT_FOUND = 127 };

static int has_io_uring(void)
{
    struct io_uring_params params = {0};
    int ring = (int)syscall(SYS_io_uring_setup, 1, &params);
    if (ring >= 0)
        close(ring);
    return ring >= 0;
}

/* fio divides a file name at colons, and takes a backslash before one as no division. */
static void put_name(char *to, size_t size, const char *path)
{
    size_t at = (size_t)snprintf(to, size, "--filename=");
    for (; *path && at + 2 < size; path++) {
        if (*path == ':' || *path == '\\')
            to[at++] = '\\';
        to[at++] = *path;
    }
    if (*path)
        fail("the path of the model's file is too long for fio");
    to[at] = '\0';
}

/* The child's side: become fio, its words on the pipe. */
static _Noreturn void become_fio(const struct fio_job *job, int out)
{
    static char name[2 * PATH_MAX], text[ARGUMENTS][ARGUMENT_BYTES];
    static char *arguments[ARGUMENTS + 1];
    int count = 0;
    put_name(name, sizeof name, job->path);
#define ADD(...)                                                                                   \
    (snprintf(text[count], ARGUMENT_BYTES, __VA_ARGS__), arguments[count] = text[count], count++)
    ADD("fio");
    arguments[count++] = name;
    ADD("--name=device");
    ADD("--rw=%s", job->pattern);
    ADD("--bs=%llu", (unsigned long long)job->block_bytes);
    ADD("--direct=1");
    ADD("--readonly");
    ADD("--thread");
    ADD("--ioengine=%s", has_io_uring() ? "io_uring" : "libaio");
    ADD("--iodepth=%u", job->depth);
    ADD("--offset=%llu", (unsigned long long)job->offset);
    ADD("--size=%llu", (unsigned long long)job->bytes);
    ADD("--number_ios=%llu", (unsigned long long)job->reads);
    ADD("--randseed=1");
    ADD("--invalidate=0");
    ADD("--output-format=json");
#undef ADD
    if (dup2(out, 1) >= 0)
        execvp("fio", arguments);
    _exit(errno == ENOENT ? NOT_FOUND : 126);
}

static char *read_all(int file)
{
    size_t size = 0, room = 1 << 16;
    char *text = malloc(room);
    for (ssize_t got; text && (got = read(file, text + size, room - size - 1)) != 0;) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            fail_errno("reading what fio says");
        size += (size_t)got;
        if (room - size < 2)
            text = realloc(text, room *= 2);
    }
    if (!text)
        fail("no memory for what fio says");
    text[size] = '\0';
    return text;
}

/* What follows `"name" : ` after `from`. */
static const char *value_of(const char *from, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "\"%s\"", name);
    const char *at = from ? strstr(from, key) : NULL;
    if (!at)
        fail("fio's output has no \"%s\": is another program called fio on the PATH?", name);
    at += strlen(key);
    return at + strspn(at, " :");
}

static double number_of(const char *from, const char *name)
{
    return strtod(value_of(from, name), NULL);
}

struct fio_result fio_run(const struct fio_job *job)
{
    int ends[2], status;
    if (pipe(ends))
        fail_errno("pipe");
    pid_t child = fork();
    if (child < 0)
        fail_errno("fork");
    if (child == 0) {
        close(ends[0]);
        become_fio(job, ends[1]);
    }
    close(ends[1]);
    char *text = read_all(ends[0]);
    close(ends[0]);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            fail_errno("waiting for fio");
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_FOUND)
        unsupported("fio, which measures the device, is not on the PATH: install the package fio");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail("fio failed (%s %d); its words are above",
             WIFEXITED(status) ? "exit status" : "signal",
             WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));

    struct fio_result result = {0};
    const char *version = value_of(text, "fio version");
    snprintf(result.version, sizeof result.version, "%.*s", (int)strcspn(version + 1, "\""),
             version + 1);
    if (number_of(text, "error") != 0)
        fail("fio: error %.0f", number_of(text, "error"));
    const char *read = value_of(text, "read");
    result.bytes = (uint64_t)number_of(read, "io_bytes");
    result.reads = (uint64_t)number_of(read, "total_ios");
    result.seconds = number_of(read, "runtime") / 1e3;
    result.iops = number_of(read, "iops");
    if (result.reads != job->reads)
        fail("fio made %llu of %llu reads", (unsigned long long)result.reads,
             (unsigned long long)job->reads);
    free(text);
    return result;
}
