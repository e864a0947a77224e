#define _GNU_SOURCE
#include "watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The number after `name`, or -1. */
static long long number_after(const char *text, const char *name)
{
    const char *found = strstr(text, name);
    return found ? atoll(found + strlen(name)) : -1;
}

static int read_from_start(int file, char *text, size_t size)
{
    ssize_t length = pread(file, text, size - 1, 0);
    text[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static int open_process_file(pid_t pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int read_process_file(pid_t pid, const char *name, char *text, size_t size)
{
    int file = open_process_file(pid, name);
    if (file < 0)
        return 0;
    int read = read_from_start(file, text, size);
    close(file);
    return read;
}

pid_t parent_of(pid_t pid)
{
    char text[512];
    int parent;
    if (!read_process_file(pid, "stat", text, sizeof text))
        return -1;
    /* "PID (name) state PPID ...": the name may hold anything, so look from its end. */
    const char *end = strrchr(text, ')');
    return end && sscanf(end, ") %*c %d", &parent) == 1 ? (pid_t)parent : -1;
}

/* One pread of /proc/PID/status: some 20 us, and unlike smaps it takes no lock of the program. */
static long long sample(int status, struct memory *most)
{
    char text[8192];
    if (!read_from_start(status, text, sizeof text))
        return -1;
    long long rss = number_after(text, "\nVmRSS:"), locked = number_after(text, "\nVmLck:");
    long long high_water = number_after(text, "\nVmHWM:");
    if (locked > most->locked)
        most->locked = locked;
    if (high_water > most->high_water)
        most->high_water = high_water;
    if (rss > most->rss) {
        most->rss = rss;
        most->anon = number_after(text, "\nRssAnon:");
        most->file = number_after(text, "\nRssFile:");
        most->shmem = number_after(text, "\nRssShmem:");
        most->swap = number_after(text, "\nVmSwap:");
    }
    return rss;
}

static int by_pid(const void *one, const void *other)
{
    return ((const struct process *)one)->pid - ((const struct process *)other)->pid;
}

static int is_ours(const struct tree *tree, pid_t pid)
{
    struct process key = {.pid = pid};
    const struct process *found = NULL;
    if (tree->count)
        found = bsearch(&key, tree->all, tree->count, sizeof key, by_pid);
    return found && found->ours;
}

/* List all processes again; only those that were not there last time are opened. */
static void look(struct tree *tree, pid_t launcher)
{
    DIR *folder = opendir("/proc");
    if (!folder)
        return;
    struct tree now = *tree;
    size_t known = 0, room = 0;
    now.all = NULL;
    now.count = 0;
    for (struct dirent *entry; (entry = readdir(folder));) { /* pids come in ascending order */
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0)
            continue;
        if (now.count == room) {
            room = room ? room * 2 : 256;
            struct process *grown = realloc(now.all, room * sizeof *grown);
            if (!grown)
                break;
            now.all = grown;
        }
        while (known < tree->count && tree->all[known].pid < pid)
            known++;
        if (known < tree->count && tree->all[known].pid == pid)
            now.all[now.count++] = tree->all[known];
        else
            now.all[now.count++] = (struct process){.pid = pid, .parent = parent_of(pid)};
    }
    closedir(folder);
    /* An orphan's parent is the launcher, as the subreaper; whoever was ours once stays so. */
    for (int found = 1; found;) {
        found = 0;
        for (size_t i = 0; i < now.count; i++) {
            struct process *process = &now.all[i];
            if (!process->ours &&
                (process->parent == launcher || is_ours(&now, process->parent)))
                process->ours = found = 1;
        }
    }
    free(tree->all);
    *tree = now;
}

struct watch watch_begin(pid_t launcher)
{
    struct watch watch = {
        .launcher = launcher,
        .memory = {-1, -1, -1, -1, -1, -1, -1},
        .tree = {.peak_kb = -1, .processes = -1},
    };
    watch.tree.loadavg = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    look(&watch.tree, launcher);
    return watch;
}

void watch_program(struct watch *watch, pid_t program)
{
    /* Opened now: a zombie's files in /proc belong to root, whoever it was. */
    watch->program = program;
    watch->status = open_process_file(program, "status");
    watch->stat = open_process_file(program, "stat");
    watch->io = open_process_file(program, "io");
}

/* kB, or 0 for a zombie, a process that is gone, and one that still shares its parent's memory
 * between vfork and exec. */
static long long rss_of(const struct process *process)
{
    char text[128];
    long long pages;
    if (!read_process_file(process->pid, "statm", text, sizeof text) ||
        sscanf(text, "%*d %lld", &pages) != 1 || pages == 0 ||
        syscall(SYS_kcmp, process->parent, process->pid, KCMP_VM, 0, 0) == 0)
        return 0;
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Processes are listed only when one was born since, which the pid given out last tells for some
 * microseconds; /proc/PID/task/TID/children would need a file a thread, in kernels that have it. */
static void sum_tree(struct tree *tree, pid_t launcher, pid_t program, long long program_kb)
{
    char text[128];
    long long last = -1;
    if (read_from_start(tree->loadavg, text, sizeof text))
        sscanf(text, "%*s %*s %*s %*s %lld", &last);
    if (last != tree->last_pid || last < 0)
        tree->looks_due = 2; /* a second time, as a pid is given out before its process shows */
    tree->last_pid = last;
    if (tree->looks_due > 0) {
        tree->looks_due--;
        look(tree, launcher);
    }
    if (program_kb < 0)
        return;
    long long sum = program_kb;
    int processes = 1;
    for (size_t i = 0; i < tree->count; i++) {
        if (!tree->all[i].ours || tree->all[i].pid == program)
            continue;
        long long rss = rss_of(&tree->all[i]);
        sum += rss;
        processes += rss > 0;
    }
    if (sum > tree->peak_kb)
        tree->peak_kb = sum;
    if (processes > tree->processes)
        tree->processes = processes;
}

static void add_name(struct names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->all[i], name) == 0)
            return;
    char **grown = realloc(names->all, (names->count + 1) * sizeof *grown);
    char *copy = strdup(name);
    if (!grown || !copy)
        abort(); /* better no report than a list that lacks a library */
    names->all = grown;
    names->all[names->count++] = copy;
}

static void add_code_files(struct names *names, pid_t program)
{
    char path[64], *line = NULL;
    size_t room = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)program);
    FILE *maps = fopen(path, "re");
    if (!maps)
        return;
    for (ssize_t length; (length = getline(&line, &room, maps)) > 0;) {
        char rights[5];
        int name = 0;
        line[length - 1] = '\0'; /* a newline inside a name is shown as \012 */
        if (sscanf(line, "%*x-%*x %4s %*x %*x:%*x %*u %n", rights, &name) == 1 && name &&
            rights[2] == 'x' && line[name] == '/')
            add_name(names, line + name);
    }
    free(line);
    fclose(maps);
}

void watch_tick(struct watch *watch, double elapsed_s)
{
    long long rss = sample(watch->status, &watch->memory);
    sum_tree(&watch->tree, watch->launcher, watch->program, rss);
    /* Libraries come at the start: after 1, 2, 4, ... ms, and ever more rarely. */
    if (elapsed_s >= watch->code_due_s) {
        add_code_files(&watch->code, watch->program);
        watch->code_due_s = 2 * elapsed_s;
    }
}

struct ended watch_end(const struct watch *watch)
{
    char text[1024];
    struct ended ended = {-1, -1, -1};
    long long minor, major;
    if (read_from_start(watch->io, text, sizeof text)) {
        ended.rchar = number_after(text, "rchar: ");
        ended.read_bytes = number_after(text, "\nread_bytes: ");
    }
    const char *end = read_from_start(watch->stat, text, sizeof text) ? strrchr(text, ')') : NULL;
    if (end && sscanf(end, ") %*c %*d %*d %*d %*d %*d %*u %*u %lld %*u %lld", &minor, &major) == 2)
        ended.children_faults = minor + major;
    return ended;
}

/* As a JSON list, or null where there is none; each byte of a name is one character of at most
 * U+00FF, for a name is any bytes and JSON is not. */
void print_names(FILE *out, const struct names *names)
{
    if (!names->count) {
        fputs("null", out);
        return;
    }
    for (size_t i = 0; i < names->count; i++) {
        fputs(i ? ", \"" : "[\"", out);
        for (const unsigned char *at = (const unsigned char *)names->all[i]; *at; at++) {
            if (*at < ' ' || *at == '"' || *at == '\\' || *at > '~')
                fprintf(out, "\\u%04x", *at);
            else
                fputc(*at, out);
        }
        fputc('"', out);
    }
    fputc(']', out);
}
