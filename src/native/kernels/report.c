#define _GNU_SOURCE
#include "report.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *program = "kernel";
static char bus_line[8192];
static FILE *object; /* what the object holds so far */
static char *object_text;
static size_t object_size;

/* Only calls that are safe in a signal handler (signal-safety(7)). Several threads may meet the same
 * lost page: one of them tells, and ends them all. */
static void on_bus(int number)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    (void)number;
    while (atomic_flag_test_and_set(&told))
        pause();
    if (write(2, bus_line, strlen(bus_line)) < 0)
        _exit(FAILED);
    _exit(FAILED);
}

void report_begin(const char *name, const char *path)
{
    program = name;
    if (!path)
        return;
    snprintf(bus_line, sizeof bus_line,
             "%s: SIGBUS: a mapped page of %s could not be read: the file was shortened meanwhile, "
             "or its disk failed\n",
             name, path);
    struct sigaction action = {.sa_handler = on_bus};
    sigaction(SIGBUS, &action, NULL);
}

static void say(const char *format, va_list arguments, int error)
{
    char line[4096];
    vsnprintf(line, sizeof line, format, arguments);
    if (error)
        fprintf(stderr, "%s: %s: %s\n", program, line, strerror(error));
    else
        fprintf(stderr, "%s: %s\n", program, line);
}

/* _exit, not exit: other threads may still be at work, and stdout holds nothing yet. */
void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments, 0);
    va_end(arguments);
    _exit(FAILED);
}

void fail_errno(const char *format, ...)
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments, error);
    va_end(arguments);
    _exit(FAILED);
}

void usage(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments, 0);
    va_end(arguments);
    _exit(USAGE);
}

/* The bytes of the UTF-8 character here, or 0 where there is none. */
static int utf8_length(const unsigned char *at)
{
    int more = *at < 0x80 ? 0 : *at < 0xe0 ? 1 : *at < 0xf0 ? 2 : 3;
    if ((*at >= 0x80 && *at < 0xc2) || *at > 0xf4)
        return 0;
    for (int i = 1; i <= more; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return more + 1;
}

static void put_string(FILE *to, const char *text)
{
    fputc('"', to);
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        int length = utf8_length(at);
        if (*at == '"' || *at == '\\')
            fputc('\\', to);
        if (length == 0 || *at < 0x20) /* a path may hold anything */
            fprintf(to, "\\u%04x", *at++);
        else
            for (; length > 0; length--)
                fputc(*at++, to);
    }
    fputc('"', to);
}

void unsupported(const char *format, ...)
{
    char reason[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    fputs("{\"unsupported\": ", stdout);
    put_string(stdout, reason);
    fputs("}\n", stdout);
    if (fflush(stdout) || ferror(stdout))
        fail_errno("standard output");
    _exit(UNSUPPORTED);
}

static FILE *member(const char *name)
{
    if (!object && !(object = open_memstream(&object_text, &object_size)))
        fail_errno("no memory for the result");
    fputs(ftell(object) == 0 ? "{" : ", ", object);
    put_string(object, name);
    fputs(": ", object);
    return object;
}

static void put_figure(FILE *to, double value)
{
    if (isfinite(value))
        fprintf(to, "%.9g", value);
    else
        fputs("null", to);
}

void report_text(const char *name, const char *value)
{
    put_string(member(name), value);
}

void report_count(const char *name, uint64_t value)
{
    fprintf(member(name), "%llu", (unsigned long long)value);
}

void report_figure(const char *name, double value)
{
    put_figure(member(name), value);
}

void report_figures(const char *name, const double *values, uint64_t count)
{
    FILE *to = member(name);
    fputc('[', to);
    for (uint64_t i = 0; i < count; i++) {
        if (i)
            fputs(", ", to);
        put_figure(to, values[i]);
    }
    fputc(']', to);
}

void report_texts(const char *name, const char *const *values, uint64_t count)
{
    FILE *to = member(name);
    fputc('[', to);
    for (uint64_t i = 0; i < count; i++) {
        if (i)
            fputs(", ", to);
        put_string(to, values[i]);
    }
    fputc(']', to);
}

int report_end(void)
{
    if (!object)
        fail("nothing to report");
    fputc('}', object);
    if (fclose(object))
        fail_errno("no memory for the result");
    if (puts(object_text) < 0 || fflush(stdout) || ferror(stdout))
        fail_errno("standard output");
    free(object_text);
    return RESULT;
}

void hint(struct hints *hints, const char *call, uint64_t ranges, int failed)
{
    int error = errno, none = 0;
    atomic_fetch_add(&hints->calls, 1);
    atomic_fetch_add(&hints->ranges, ranges);
    if (!failed)
        return;
    if (atomic_fetch_add(&hints->errors, 1) == 0 &&
        atomic_compare_exchange_strong(&hints->first_errno, &none, error))
        atomic_store(&hints->first_call, call);
}

void report_hints(const struct hints *hints)
{
    report_count("hints", atomic_load(&hints->calls));
    report_count("hint_ranges", atomic_load(&hints->ranges));
    report_count("hint_errors", atomic_load(&hints->errors));
    const char *call = atomic_load(&hints->first_call);
    if (!call)
        return;
    char words[512];
    snprintf(words, sizeof words, "%s: %s", call, strerror(atomic_load(&hints->first_errno)));
    report_text("hint_error", words);
}

double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

uint64_t number_option(const char *name, const char *text, uint64_t least, uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || value < least || value > most)
        usage("%s %s: a whole number from %llu to %llu is needed", name, text,
              (unsigned long long)least, (unsigned long long)most);
    return value;
}
