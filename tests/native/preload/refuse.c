/* LD_PRELOAD: the kernel refuses what the environment names. NO_ADVICE: madvise and posix_fadvise
 * (EINVAL); REFUSED, a number: that call through syscall(), with the error number in ERRNO. COUNT:
 * a file that gets a byte at each madvise. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#define syscall variadic_syscall /* ours takes its arguments by name */
#include <unistd.h>
#undef syscall

int madvise(void *at, size_t bytes, int advice)
{
    const char *count = getenv("COUNT");
    int file = count ? open(count, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file >= 0 && (write(file, "", 1) != 1 || close(file)))
        abort();
    if (!getenv("NO_ADVICE"))
        return ((int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise"))(at, bytes, advice);
    errno = EINVAL;
    return -1;
}

int posix_fadvise(int file, off_t offset, off_t bytes, int advice)
{
    if (!getenv("NO_ADVICE"))
        return ((int (*)(int, off_t, off_t, int))dlsym(RTLD_NEXT, "posix_fadvise"))(
            file, offset, bytes, advice);
    return EINVAL;
}

long syscall(long number, long a, long b, long c, long d, long e, long f)
{
    const char *refused = getenv("REFUSED");
    if (!refused || number != atol(refused))
        return ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, a, b, c, d, e, f);
    errno = atoi(getenv("ERRNO"));
    return -1;
}
