#define _GNU_SOURCE
#include "advise.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* the same on all architectures */
#endif
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif

enum { VECTOR = 1024 };

static struct iovec memory_of(const struct table *table, const struct range *range)
{
    return (struct iovec){
        (void *)(table->mapped + (range->page - table->first_page) * table->page),
        range->pages * table->page,
    };
}

void advise_random(const struct table *table, struct hints *hints)
{
    int failed = madvise((void *)table->mapped, table->pages * table->page, MADV_RANDOM);
    hint(hints, "madvise(MADV_RANDOM)", 1, failed);
}

/* Whether the kernel lacks it, asked past the C library and of memory that has nothing wrong. */
static int no_populate(void)
{
    static _Alignas(65536) char page[65536];
    int error = errno;
    int lacks = syscall(SYS_madvise, page, sizeof page, MADV_POPULATE_READ) && errno == EINVAL;
    errno = error;
    return lacks;
}

static void advise_each(const struct table *table, const struct plan *plan, int value,
                        const char *call, struct hints *hints)
{
    for (uint64_t i = 0; i < plan->ranges_count; i++) {
        struct iovec memory = memory_of(table, &plan->ranges[i]);
        int failed = madvise(memory.iov_base, memory.iov_len, value);
        if (failed && value == MADV_POPULATE_READ && errno == EINVAL && no_populate())
            unsupported("this kernel has no MADV_POPULATE_READ: Linux 5.14 or later is needed");
        hint(hints, call, 1, failed);
    }
}

static int own_pidfd(void)
{
    static int pidfd = -1;
    if (pidfd < 0)
        pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (pidfd < 0 && errno == ENOSYS)
        unsupported("this kernel has no pidfd_open: Linux 5.3 or later is needed");
    if (pidfd < 0)
        fail_errno("pidfd_open");
    return pidfd;
}

/* The call may stop amid the vector; it then says how far it came, and the next one why. */
static void advise_vector(struct iovec *memory, unsigned count, struct hints *hints)
{
    static const char call[] = "process_madvise(MADV_WILLNEED)";
    for (unsigned at = 0; at < count;) {
        long done = syscall(SYS_process_madvise, own_pidfd(), memory + at, (size_t)(count - at),
                            MADV_WILLNEED, 0U);
        if (done < 0 && errno == ENOSYS)
            unsupported("this kernel has no process_madvise: Linux 5.10 or later is needed");
        if (done < 0 && errno == EPERM)
            unsupported("process_madvise on itself is not allowed: the capability CAP_SYS_NICE is "
                        "needed (or Linux 6.13 or later)");
        unsigned begun = at;
        while (done > 0 && at < count && (size_t)done >= memory[at].iov_len)
            done -= (long)memory[at++].iov_len;
        if (done > 0) {
            memory[at].iov_base = (char *)memory[at].iov_base + done;
            memory[at].iov_len -= (size_t)done;
        }
        hint(hints, call, at - begun, done < 0);
        if (done < 0 || (done == 0 && at == begun))
            return;
    }
}

uint64_t advise(const struct table *table, const struct plan *plan, enum advice advice,
                struct hints *hints)
{
    struct iovec vector[VECTOR];
    switch (advice) {
    case NO_ADVICE: return 0;
    case WILLNEED:
        advise_each(table, plan, MADV_WILLNEED, "madvise(MADV_WILLNEED)", hints);
        break;
    case POPULATE_READ:
        advise_each(table, plan, MADV_POPULATE_READ, "madvise(MADV_POPULATE_READ)", hints);
        break;
    case WILLNEED_VECTOR:
        for (uint64_t i = 0; i < plan->ranges_count;) {
            unsigned count = 0;
            for (; count < VECTOR && i < plan->ranges_count; count++, i++)
                vector[count] = memory_of(table, &plan->ranges[i]);
            advise_vector(vector, count, hints);
        }
        break;
    }
    return plan->pages * table->page;
}
