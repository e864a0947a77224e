/* Read a whole file in one of three ways: reads read|mmap|direct FILE; prints how many bytes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    enum { CHUNK = 1 << 20, PAGE = 4096 };
    if (argc != 3)
        return 2;
    int direct = strcmp(argv[1], "direct") == 0;
    int file = open(argv[2], O_RDONLY | (direct ? O_DIRECT : 0));
    struct stat facts;
    if (file < 0 || fstat(file, &facts))
        return 1;
    long long done = 0;
    if (strcmp(argv[1], "mmap") == 0) {
        const volatile char *pages =
            mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_SHARED, file, 0);
        if (pages == MAP_FAILED)
            return 1;
        for (; done < facts.st_size; done += PAGE)
            (void)pages[done];
    } else {
        void *chunk;
        if (posix_memalign(&chunk, PAGE, CHUNK))
            return 1;
        for (ssize_t got; (got = read(file, chunk, CHUNK)) > 0;)
            done += got;
    }
    printf("%lld\n", done);
    return 0;
}
