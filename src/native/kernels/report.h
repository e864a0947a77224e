/*
 * How our kernel programs (gather, stream) speak: one JSON object on stdout at the end, words for
 * people on stderr, and an exit status of RESULT, FAILED, USAGE or UNSUPPORTED. Everything here
 * may be called from one thread only, but for fail(), hint() and now_s().
 */
#ifndef COLDBENCH_REPORT_H
#define COLDBENCH_REPORT_H

#include <stdatomic.h>
#include <stdint.h>

enum { RESULT = 0, FAILED = 1, USAGE = 2, UNSUPPORTED = 3 };

/* The name that begins each line on stderr, and `path` for the line that a SIGBUS ends in: a page
 * of a mapping that its file no longer holds, or that its disk could not read (mmap(2)). `path`
 * must outlive the program's work; NULL as long as nothing is mapped. */
void report_begin(const char *program, const char *path);

/* One line on stderr, with errno's words after it for fail_errno. They never return. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void fail_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* This machine can't do it: {"unsupported": "..."} on stdout; say the mend. */
_Noreturn void unsupported(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The members of the object, in the order of the calls. A figure that is not finite is null. */
void report_text(const char *name, const char *value);
void report_count(const char *name, uint64_t value);
void report_figure(const char *name, double value);
/* A list of figures under one name. */
void report_figures(const char *name, const double *values, uint64_t count);
/* A list of texts. */
void report_texts(const char *name, const char *const *values, uint64_t count);

/* Print the object with a newline, flush and check it; returns RESULT for main to return. */
int report_end(void);

/* Advice given to the kernel. A call that fails never ends the run, but is always counted, so that
 * no arm can pass for treated that was not. Zero it before use; hint() may run in any thread. */
struct hints {
    atomic_ullong calls, ranges, errors;
    atomic_int first_errno; /* of the first call that failed */
    _Atomic(const char *) first_call;
};

/* Count one call, for example hint(&hints, "madvise(MADV_RANDOM)", 1, madvise(...) != 0). `failed`
 * means that errno says why; `call` must be a literal. */
void hint(struct hints *hints, const char *call, uint64_t ranges, int failed);

/* hints, hint_ranges, hint_errors and, where there was an error, hint_error. */
void report_hints(const struct hints *hints);

/* Seconds of the monotonic clock. */
double now_s(void);

/* The whole number that `text`, the value of the option `name`, holds; usage() unless it lies in
 * least..most. */
uint64_t number_option(const char *name, const char *text, uint64_t least, uint64_t most);

#endif
