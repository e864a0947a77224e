/* Load a library, delete its file where told to, and stay a little: load LIBRARY [delete] */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 2 || !dlopen(argv[1], RTLD_NOW)) {
        fprintf(stderr, "%s\n", argc < 2 ? "no library" : dlerror());
        return 1;
    }
    if (argc > 2 && unlink(argv[1]))
        return 1;
    usleep(400000);
    return 0;
}
