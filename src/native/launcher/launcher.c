/*
 * launcher: runs one program alone, bounds it, watches its memory and reports how it ended.
 *
 *   launcher --parent PID --report FILE --stdout FILE --stderr FILE --time-limit SECONDS
 *            --output-limit BYTES [--cgroup PROCS_FILE]... [--cpus LIST]
 *            [--mark stdout:TEXT|stderr:TEXT]... -- PROGRAM [ARGUMENT]...
 *
 * PROGRAM is a path; it gets the launcher's own environment, an empty stdin, no other open files,
 * a session of its own and default signals. The report is one JSON object in which -1 is a value
 * that could not be had; the launcher's exit status is 0 exactly when it was written. Of each mark
 * it holds when its TEXT was first on that stream, in seconds since the exec.
 *
 * A program of its own and not Python, since the peak RSS that the kernel reports for a child
 * starts at the size of whatever forked it, and a clean-up that must survive `kill -9` of its
 * caller has to live elsewhere.
 *
 * Sources: prctl(2), getrusage(2), waitid(2), cgroups(7).
 */
#define _GNU_SOURCE
#include "marks.h"
#include "watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436 /* the same on all architectures; older headers lack the name */
#endif

enum { FIRST_TICK_MS = 1, TICK_MS = 50, SWEEP_MS = 10, SWEEPS = 1000, CGROUPS = 4 };

struct options {
    pid_t parent;
    const char *report, *out, *err, *cpus;
    const char *cgroups[CGROUPS + 1]; /* up to the first NULL */
    double time_limit_s;
    long long output_limit_bytes;
    struct marks marks;
    char **argv;
};

/* What the child says through a pipe that a successful exec closes: the step it takes next, the
 * last of which is "exec", and with an error, that it could not. */
struct step {
    char name[16];
    int error;
    double unix_s, monotonic_s;
};

static void die(const char *what)
{
    fprintf(stderr, "launcher: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void kill_own_children(void)
{
    DIR *folder = opendir("/proc");
    if (!folder)
        die("/proc");
    for (struct dirent *entry; (entry = readdir(folder));) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid > 0 && parent_of(pid) == getpid())
            kill(pid, SIGKILL);
    }
    closedir(folder);
}

/* Kill and reap all descendants: as subreaper, the launcher inherits every orphan of the tree. */
static int sweep(void)
{
    for (int round = 0; round < SWEEPS; round++) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0)
            return 1;
        kill_own_children();
        nanosleep(&(struct timespec){0, SWEEP_MS * 1000000L}, NULL);
    }
    return 0;
}

static int set_affinity(const char *list)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const char *at = list;; at++) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (end == at)
            break;
        if (*end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
            if (end == at)
                break;
        }
        if (first < 0 || last < first || last >= CPU_SETSIZE)
            break;
        for (long cpu = first; cpu <= last; cpu++)
            CPU_SET((size_t)cpu, &set);
        at = end;
        if (*at == '\0')
            return sched_setaffinity(0, sizeof set, &set);
        if (*at != ',')
            break;
    }
    errno = EINVAL;
    return -1;
}

static int join_cgroup(const char *procs)
{
    int file = open(procs, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, "0", 1) != 1) /* 0: the writing process */
        return -1;
    return close(file);
}

static int tell(int report, const char *name, int error)
{
    struct step step = {.error = error};
    snprintf(step.name, sizeof step.name, "%s", name);
    step.unix_s = seconds(CLOCK_REALTIME);
    step.monotonic_s = seconds(CLOCK_MONOTONIC);
    return write(report, &step, sizeof step) == (ssize_t)sizeof step;
}

static void fail(int report, const char *name)
{
    _exit(tell(report, name, errno) ? 127 : 126);
}

/* The child's side of the fork: become PROGRAM or say why not. */
static void become(const struct options *options, pid_t launcher, int out, int err, int report)
{
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(126);
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
        fail(report, "streams");
    if (setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}))
        fail(report, "core limit");
    for (const char *const *cgroup = options->cgroups; *cgroup; cgroup++)
        if (join_cgroup(*cgroup))
            fail(report, "cgroup");
    if (options->cpus && set_affinity(options->cpus))
        fail(report, "cpus");
    /* The system call: glibc hides two signals from signal(3), and its posix_spawn ignores them. */
    const unsigned long by_default[8] = {0}; /* a struct sigaction of the kernel's, SIG_DFL */
    for (int number = 1; number < NSIG; number++)
        syscall(SYS_rt_sigaction, number, by_default, NULL, sizeof(unsigned long));
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (tell(report, "exec", 0))
        execv(options->argv[0], options->argv);
    fail(report, "exec");
}

/* Reap whatever has ended other than `program`; 1 once `program` has (left as a zombie). */
static int has_ended(pid_t program, siginfo_t *how)
{
    for (;;) {
        how->si_pid = 0;
        if (waitid(P_ALL, 0, how, WEXITED | WNOHANG | WNOWAIT) || how->si_pid == 0)
            return 0;
        if (how->si_pid == program)
            return 1;
        waitpid(how->si_pid, NULL, WNOHANG);
    }
}

static long long size_of(int file)
{
    struct stat facts;
    return fstat(file, &facts) ? 0 : (long long)facts.st_size;
}

static FILE *begin_report(const struct options *options, char *temporary, size_t size)
{
    snprintf(temporary, size, "%s.tmp", options->report);
    FILE *report = fopen(temporary, "we");
    if (!report)
        die(temporary);
    return report;
}

static void end_report(const struct options *options, FILE *report, const char *temporary)
{
    fputs("}\n", report);
    if (fclose(report) || rename(temporary, options->report))
        die(options->report);
}

static struct options parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"parent", required_argument, 0, 'p'},     {"report", required_argument, 0, 'r'},
        {"stdout", required_argument, 0, 'o'},     {"stderr", required_argument, 0, 'e'},
        {"time-limit", required_argument, 0, 't'}, {"output-limit", required_argument, 0, 'l'},
        {"cgroup", required_argument, 0, 'g'},     {"cpus", required_argument, 0, 'c'},
        {"mark", required_argument, 0, 'm'},       {0, 0, 0, 0},
    };
    struct options options = {0};
    size_t cgroups = 0;
    for (int option; (option = getopt_long(argc, argv, "+", known, NULL)) != -1;) {
        switch (option) {
        case 'p': options.parent = (pid_t)atoi(optarg); break;
        case 'r': options.report = optarg; break;
        case 'o': options.out = optarg; break;
        case 'e': options.err = optarg; break;
        case 't': options.time_limit_s = atof(optarg); break;
        case 'l': options.output_limit_bytes = atoll(optarg); break;
        case 'g':
            if (cgroups == CGROUPS)
                exit(2);
            options.cgroups[cgroups++] = optarg;
            break;
        case 'c': options.cpus = optarg; break;
        case 'm':
            if (!marks_add(&options.marks, optarg))
                exit(2);
            break;
        default: exit(2);
        }
    }
    options.argv = argv + optind;
    if (!options.parent || !options.report || !options.out || !options.err || !*options.argv ||
        options.time_limit_s <= 0 || options.output_limit_bytes <= 0) {
        fputs("launcher: see the head of launcher.c for its arguments\n", stderr);
        exit(2);
    }
    return options;
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);

    sigset_t awaited;
    sigemptyset(&awaited);
    const int numbers[] = {SIGCHLD, SIGIO, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        signal(numbers[i], SIG_DFL); /* an ignored signal would never be delivered below */
        sigaddset(&awaited, numbers[i]);
    }
    sigprocmask(SIG_BLOCK, &awaited, NULL);

    /* SIGTERM, not SIGKILL: after the parent's sudden death the whole tree is still cleaned up. */
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) || prctl(PR_SET_CHILD_SUBREAPER, 1))
        die("prctl");
    if (getppid() != options.parent)
        return 1;
    syscall(SYS_close_range, 3, ~0U, 0);

    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    int out = open(options.out, flags, 0644), err = open(options.err, flags, 0644);
    if (out < 0 || err < 0)
        die(out < 0 ? options.out : options.err);
    if (marks_begin(&options.marks, options.out, options.err))
        die("inotify");
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        die("pipe");

    pid_t launcher = getpid();
    struct watch watch = watch_begin(launcher);
    pid_t program = fork();
    if (program < 0)
        die("fork");
    if (program == 0)
        become(&options, launcher, out, err, ends[1]);
    close(ends[1]);
    watch_program(&watch, program);

    char temporary[PATH_MAX];
    /* Time runs from the exec: entering control groups takes milliseconds, now and then 20. */
    struct step step, last = {.unix_s = seconds(CLOCK_REALTIME)};
    last.monotonic_s = seconds(CLOCK_MONOTONIC);
    while (read(ends[0], &step, sizeof step) == (ssize_t)sizeof step)
        last = step;
    double started_unix_s = last.unix_s, start = last.monotonic_s;
    if (last.error) {
        sweep();
        FILE *report = begin_report(&options, temporary, sizeof temporary);
        fprintf(report,
                "{\"ended\": \"not started\", \"started_unix_s\": %.6f, \"step\": \"%s\", "
                "\"errno\": %d",
                started_unix_s, last.name, last.error);
        end_report(&options, report, temporary);
        return 0;
    }

    const char *limit = NULL;
    int stopped_by = -1;
    siginfo_t how;
    for (long tick_ms = FIRST_TICK_MS; !has_ended(program, &how);) {
        marks_look(&options.marks, start);
        double elapsed_s = seconds(CLOCK_MONOTONIC) - start;
        watch_tick(&watch, elapsed_s);
        if (!limit && elapsed_s > options.time_limit_s)
            limit = "time limit";
        if (!limit && size_of(out) + size_of(err) > options.output_limit_bytes)
            limit = "output limit";
        if (limit || stopped_by > 0)
            kill(-program, SIGKILL); /* whoever left the group is swept once it is an orphan */
        int caught = sigtimedwait(&awaited, NULL, &(struct timespec){0, tick_ms * 1000000L});
        if (caught > 0 && caught != SIGCHLD && caught != SIGIO)
            stopped_by = caught;
        tick_ms = tick_ms * 2 < TICK_MS ? tick_ms * 2 : TICK_MS;
    }
    double wall_s = seconds(CLOCK_MONOTONIC) - start;
    marks_look(&options.marks, start);
    struct ended zombie = watch_end(&watch);
    kill(-program, SIGKILL);
    struct rusage usage;
    wait4(program, NULL, 0, &usage);
    int swept = sweep();

    int by_signal = how.si_code != CLD_EXITED;
    const char *ended = by_signal ? "signal" : "exit";
    if (limit && by_signal && how.si_status == SIGKILL)
        ended = limit;
    const struct memory *most = &watch.memory;
    /* The kernel's last word is the larger of the program's peak and of any child it waited for,
     * so it is the program's own only where there was no such child. */
    long long peak = most->high_water;
    if (zombie.children_faults == 0 && usage.ru_maxrss > peak)
        peak = usage.ru_maxrss;
    long long tree = watch.tree.peak_kb > peak ? watch.tree.peak_kb : peak;
    FILE *report = begin_report(&options, temporary, sizeof temporary);
    fprintf(report,
            "{\"ended\": \"%s\", \"started_unix_s\": %.6f, \"wall_s\": %.6f, "
            "\"user_s\": %ld.%06ld, \"system_s\": %ld.%06ld, "
            "\"code\": %d, \"signal\": %d, \"stopped_by\": %d, \"swept\": %s, "
            "\"peak_rss_kb\": %lld, \"anon_kb\": %lld, \"file_kb\": %lld, \"shmem_kb\": %lld, "
            "\"swap_kb\": %lld, \"locked_kb\": %lld, \"tree_kb\": %lld, \"processes\": %d, "
            "\"read_bytes\": %lld, \"rchar_bytes\": %lld, "
            "\"major_faults\": %ld, \"minor_faults\": %ld, \"loaded\": ",
            ended, started_unix_s, wall_s, (long)usage.ru_utime.tv_sec,
            (long)usage.ru_utime.tv_usec, (long)usage.ru_stime.tv_sec,
            (long)usage.ru_stime.tv_usec, by_signal ? -1 : how.si_status,
            by_signal ? how.si_status : -1, stopped_by, swept ? "true" : "false", peak,
            most->anon, most->file, most->shmem, most->swap, most->locked, tree,
            watch.tree.processes, zombie.read_bytes, zombie.rchar, usage.ru_majflt,
            usage.ru_minflt);
    print_names(report, &watch.code);
    fputs(", \"marks\": ", report);
    print_marks(report, &options.marks);
    end_report(&options, report, temporary);
    return 0;
}
