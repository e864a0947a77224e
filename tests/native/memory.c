/* Programs of known memory: memory allocate|hold|map|fork|daemon|vfork BYTES [FILE] */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const useconds_t HOLD_US = 300000; /* several of the launcher's samples */

static void check(int good, const char *what)
{
    if (good)
        return;
    perror(what);
    exit(1);
}

static char *touched(size_t size)
{
    char *held = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(held != MAP_FAILED, "mmap");
    memset(held, 1, size);
    return held;
}

static unsigned mapped(const char *path, size_t size)
{
    int file = open(path, O_RDONLY);
    check(file >= 0, path);
    const char *pages = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
    check(pages != MAP_FAILED, "mmap");
    unsigned sum = 0;
    for (size_t at = 0; at < size; at += 4096)
        sum += (unsigned char)pages[at];
    return sum;
}

int main(int argc, char **argv)
{
    check(argc >= 3, "arguments");
    const char *what = argv[1];
    size_t size = strtoull(argv[2], NULL, 10);
    if (strcmp(what, "allocate") == 0) { /* and end at once: nobody may have sampled it */
        touched(size);
        return 0;
    }
    if (strcmp(what, "hold") == 0) {
        touched(size);
    } else if (strcmp(what, "map") == 0) {
        printf("%u\n", mapped(argv[3], size));
    } else if (strcmp(what, "fork") == 0 || strcmp(what, "daemon") == 0) {
        int ends[2];
        char none;
        check(pipe(ends) == 0, "pipe");
        pid_t child = fork();
        check(child >= 0, "fork");
        if (child == 0) {
            if (strcmp(what, "daemon") == 0 && fork())
                _exit(0); /* what allocates is an orphan in a session of its own */
            setsid();
            touched(size);
            usleep(HOLD_US);
            _exit(0);
        }
        check(waitpid(child, NULL, 0) == child, "wait");
        close(ends[1]);
        check(read(ends[0], &none, 1) == 0, "read"); /* until the last who could write has ended */
        return 0;
    } else if (strcmp(what, "vfork") == 0) {
        touched(size);
        pid_t child = vfork();
        if (child == 0) {
            usleep(HOLD_US);
            _exit(0);
        }
        check(waitpid(child, NULL, 0) == child, "wait");
    } else {
        check(0, what);
    }
    usleep(HOLD_US);
    return 0;
}
