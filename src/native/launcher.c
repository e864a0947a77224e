/*
 * launcher: runs one program alone, bounds it, watches its memory and reports how it ended.
 *
 *   launcher --parent PID --report FILE --stdout FILE --stderr FILE --time-limit SECONDS
 *            --output-limit BYTES [--cgroup PROCS_FILE] [--cpus LIST] -- PROGRAM [ARGUMENT]...
 *
 * PROGRAM is a path; it gets the launcher's own environment, an empty stdin, no other open files,
 * a session of its own and default signals. The report is one JSON object in which -1 is a value
 * that could not be had; the launcher's exit status is 0 exactly when it was written.
 *
 * A program of its own and not Python, since the peak RSS that the kernel reports for a child
 * starts at the size of whatever forked it, and a clean-up that must survive `kill -9` of its
 * caller has to live elsewhere.
 *
 * Sources: prctl(2), getrusage(2), waitid(2), proc_pid_status(5), proc_pid_io(5), cgroups(7).
 */
#define _GNU_SOURCE
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

enum { FIRST_TICK_MS = 1, TICK_MS = 50, SWEEP_MS = 10, SWEEPS = 1000 };

struct options {
    pid_t parent;
    const char *report, *out, *err, *cgroup, *cpus;
    double time_limit_s;
    long long output_limit_bytes;
    char **argv;
};

/* kB; -1 where unknown. The split belongs to the sample with the largest RSS. */
struct memory {
    long long rss, anon, file, shmem, swap, locked;
};

struct io {
    long long rchar, read_bytes; /* -1 where unknown */
};

/* Why a child never became PROGRAM; travels through a pipe that a successful exec closes. */
struct failure {
    char step[16];
    int error;
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

/* One pread of /proc/PID/status: some 20 us, and unlike smaps it takes no lock of the child. */
static void sample(int status, struct memory *most)
{
    char text[8192];
    if (!read_from_start(status, text, sizeof text))
        return;
    long long rss = number_after(text, "\nVmRSS:"), locked = number_after(text, "\nVmLck:");
    if (locked > most->locked)
        most->locked = locked;
    if (rss <= most->rss)
        return;
    most->rss = rss;
    most->anon = number_after(text, "\nRssAnon:");
    most->file = number_after(text, "\nRssFile:");
    most->shmem = number_after(text, "\nRssShmem:");
    most->swap = number_after(text, "\nVmSwap:");
}

/* Of a zombie, before it is reaped: these then hold all of its threads and reaped children. */
static struct io read_io(int file)
{
    char text[1024];
    read_from_start(file, text, sizeof text);
    return (struct io){number_after(text, "rchar: "), number_after(text, "\nread_bytes: ")};
}

static void kill_own_children(void)
{
    DIR *folder = opendir("/proc");
    if (!folder)
        die("/proc");
    for (struct dirent *entry; (entry = readdir(folder));) {
        char text[512];
        pid_t pid = (pid_t)atoi(entry->d_name);
        int file = pid > 0 ? open_process_file(pid, "stat") : -1;
        if (file < 0)
            continue;
        read_from_start(file, text, sizeof text);
        close(file);
        /* "PID (name) state PPID ...": the name may hold anything, so look from its end. */
        char *end = strrchr(text, ')');
        int parent = 0;
        if (end && sscanf(end, ") %*c %d", &parent) == 1 && parent == getpid())
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

static void fail(int report, const char *step)
{
    struct failure failure = {.error = errno};
    snprintf(failure.step, sizeof failure.step, "%s", step);
    _exit(write(report, &failure, sizeof failure) < 0 ? 126 : 127);
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
    if (options->cgroup && join_cgroup(options->cgroup))
        fail(report, "cgroup");
    if (options->cpus && set_affinity(options->cpus))
        fail(report, "cpus");
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
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
        {0, 0, 0, 0},
    };
    struct options options = {0};
    for (int option; (option = getopt_long(argc, argv, "+", known, NULL)) != -1;) {
        switch (option) {
        case 'p': options.parent = (pid_t)atoi(optarg); break;
        case 'r': options.report = optarg; break;
        case 'o': options.out = optarg; break;
        case 'e': options.err = optarg; break;
        case 't': options.time_limit_s = atof(optarg); break;
        case 'l': options.output_limit_bytes = atoll(optarg); break;
        case 'g': options.cgroup = optarg; break;
        case 'c': options.cpus = optarg; break;
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
    const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
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
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        die("pipe");

    pid_t launcher = getpid();
    double started_unix_s = seconds(CLOCK_REALTIME), start = seconds(CLOCK_MONOTONIC);
    pid_t program = fork();
    if (program < 0)
        die("fork");
    if (program == 0)
        become(&options, launcher, out, err, ends[1]);
    close(ends[1]);
    /* Opened now: a zombie's files in /proc belong to root, whoever it was. */
    int status = open_process_file(program, "status"), io_file = open_process_file(program, "io");

    char temporary[PATH_MAX];
    struct failure failure;
    if (read(ends[0], &failure, sizeof failure) == (ssize_t)sizeof failure) {
        sweep();
        FILE *report = begin_report(&options, temporary, sizeof temporary);
        fprintf(report,
                "{\"ended\": \"not started\", \"started_unix_s\": %.6f, \"step\": \"%s\", "
                "\"errno\": %d",
                started_unix_s, failure.step, failure.error);
        end_report(&options, report, temporary);
        return 0;
    }

    struct memory most = {-1, -1, -1, -1, -1, -1};
    const char *limit = NULL;
    int stopped_by = -1;
    siginfo_t how;
    for (long tick_ms = FIRST_TICK_MS; !has_ended(program, &how);) {
        sample(status, &most);
        if (!limit && seconds(CLOCK_MONOTONIC) - start > options.time_limit_s)
            limit = "time limit";
        if (!limit && size_of(out) + size_of(err) > options.output_limit_bytes)
            limit = "output limit";
        if (limit || stopped_by > 0)
            kill(-program, SIGKILL); /* whoever left the group is swept once it is an orphan */
        int caught = sigtimedwait(&awaited, NULL, &(struct timespec){0, tick_ms * 1000000L});
        if (caught > 0 && caught != SIGCHLD)
            stopped_by = caught;
        tick_ms = tick_ms * 2 < TICK_MS ? tick_ms * 2 : TICK_MS;
    }
    double wall_s = seconds(CLOCK_MONOTONIC) - start;
    struct io io = read_io(io_file);
    kill(-program, SIGKILL);
    struct rusage usage;
    wait4(program, NULL, 0, &usage);
    int swept = sweep();

    int by_signal = how.si_code != CLD_EXITED;
    const char *ended = by_signal ? "signal" : "exit";
    if (limit && by_signal && how.si_status == SIGKILL)
        ended = limit;
    long long peak = usage.ru_maxrss > most.rss ? usage.ru_maxrss : most.rss;
    FILE *report = begin_report(&options, temporary, sizeof temporary);
    fprintf(report,
            "{\"ended\": \"%s\", \"started_unix_s\": %.6f, \"wall_s\": %.6f, "
            "\"user_s\": %ld.%06ld, \"system_s\": %ld.%06ld, "
            "\"code\": %d, \"signal\": %d, \"stopped_by\": %d, \"swept\": %s, "
            "\"peak_rss_kb\": %lld, \"anon_kb\": %lld, \"file_kb\": %lld, \"shmem_kb\": %lld, "
            "\"swap_kb\": %lld, \"locked_kb\": %lld, \"read_bytes\": %lld, \"rchar_bytes\": %lld, "
            "\"major_faults\": %ld, \"minor_faults\": %ld",
            ended, started_unix_s, wall_s, (long)usage.ru_utime.tv_sec,
            (long)usage.ru_utime.tv_usec, (long)usage.ru_stime.tv_sec,
            (long)usage.ru_stime.tv_usec, by_signal ? -1 : how.si_status,
            by_signal ? how.si_status : -1, stopped_by, swept ? "true" : "false", peak, most.anon,
            most.file, most.shmem, most.swap, most.locked, io.read_bytes, io.rchar,
            usage.ru_majflt, usage.ru_minflt);
    end_report(&options, report, temporary);
    return 0;
}
