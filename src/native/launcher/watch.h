/*
 * What is seen of a running program: memory, processes, code files; each tick costs some 50 us.
 *
 * Sources: proc_pid_status(5), proc_pid_statm(5), proc_pid_maps(5), proc_pid_stat(5),
 * proc_pid_io(5), proc_loadavg(5), kcmp(2).
 */
#ifndef COLDBENCH_WATCH_H
#define COLDBENCH_WATCH_H

#include <stdio.h>
#include <sys/types.h>

/* kB of the program alone; -1 where unknown. The split belongs to the sample with the largest RSS,
 * `high_water` is the kernel's own record of that RSS up to the last sample. */
struct memory {
    long long rss, anon, file, shmem, swap, locked, high_water;
};

struct process {
    pid_t pid, parent;
    int ours;
};

/* The program and its descendants: the largest sum of their RSS, of at most so many at a time. */
struct tree {
    long long peak_kb;
    int processes;
    int loadavg; /* a file; its last figure is the pid given out last */
    long long last_pid;
    int looks_due;
    struct process *all; /* of the machine, by pid */
    size_t count;
};

struct names {
    char **all;
    size_t count;
};

struct watch {
    pid_t launcher, program;
    int status, stat, io; /* files of the program's */
    struct memory memory;
    struct tree tree;
    struct names code;
    double code_due_s;
};

/* Of a zombie, before it is reaped; -1 where unknown. They hold all of its threads and of the
 * children it waited for; `children_faults` tells whether there were any, since none lives
 * without a fault. */
struct ended {
    long long rchar, read_bytes, children_faults;
};

/* Before the fork: what runs by then is none of the program's. */
struct watch watch_begin(pid_t launcher);
void watch_program(struct watch *watch, pid_t program);
void watch_tick(struct watch *watch, double elapsed_s);
struct ended watch_end(const struct watch *watch);
void print_names(FILE *out, const struct names *names);

/* The parent of a process, or -1. */
pid_t parent_of(pid_t pid);

#endif
