/*
 * stream: computes over all layers of a model, token after token, under a policy of how their
 * weights come into memory that may be smaller than they are.
 *
 *   stream --model PATH --feed LAYERS --policy POLICY [option]...
 *
 * POLICY is mmap, mmap+ADVICE[+ADVICE]... (sequential, random, hugepage: of the whole mapping;
 * willneed: of the next layer; populate, collapse: of the layer before it is computed), read,
 * direct, scheduled or scheduled+uring; or fio: no computing, the device's limit. Options, sizes in bytes:
 *
 *   --tokens N     (8) passes over the model, the first of which is not steady; 2 at least
 *   --threads T    (2) that compute
 *   --work W       (1) products of each weight, to set the ratio of computing to reading
 *   --budget B     (the least memory limit of its control groups, else the machine's MemAvailable)
 *                  what buffers and retained layers may take, with the reserve
 *   --reserve R    (24 MiB, or a 32nd of the budget if that is more) of the budget, left free for
 *                  all else; below half of it the guard gives retained layers back
 *   --buffers K    (2) of `scheduled`, each of the size of the largest unit
 *   --read-size S  (4 MiB) of a read
 *   --depth D      (1; scheduled+uring: 4) reads in flight
 *   --piece P      (0: whole layers) cut layers into units that take P bytes of memory
 *   --reverse      every other token goes through the layers backwards, as training does; no
 *                  decoder can, so it only shows a bound
 *   --huge         buffers and retained layers in huge pages
 *   --mutant       leave out a byte of each layer: for a test that the checksum is one
 *
 * Exit statuses and the JSON on stdout: report.h. Figures of a `steady` token leave out the first.
 */
#define _GNU_SOURCE
#include "compute.h"
#include "device.h"
#include "memory.h"
#include "meter.h"
#include "policy.h"

#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct settings settings;
struct model model;
struct policy policy = {.fallback = ""};

/* What has been used up to the end of a token. */
struct mark {
    double at_s;
    struct meter meter;
    uint64_t read_bytes;
};

uint64_t positions(void)
{
    return settings.tokens * model.unit_count;
}

const struct unit *unit_at(uint64_t position)
{
    uint64_t token = position / model.unit_count, number = position % model.unit_count;
    if (settings.reverse && token % 2)
        number = model.unit_count - 1 - number;
    return &model.units[number];
}

/* Bytes that this process's threads have had the disk read, those of its page faults and
 * read-ahead too (proc_pid_io(5)). */
static uint64_t physical_bytes(void)
{
    char text[1024];
    int file = open("/proc/self/io", O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (got <= 0)
        fail_errno("/proc/self/io");
    close(file);
    text[got] = '\0';
    const char *found = strstr(text, "\nread_bytes: ");
    if (!found)
        fail("/proc/self/io: no read_bytes there");
    return strtoull(found + strlen("\nread_bytes: "), NULL, 10);
}

static struct mark mark(void)
{
    return (struct mark){now_s(), meter_now(), physical_bytes()};
}

static const struct option options[] = {
    {"model", required_argument, 0, 'm'},   {"feed", required_argument, 0, 'f'},
    {"policy", required_argument, 0, 'p'},  {"tokens", required_argument, 0, 'n'},
    {"threads", required_argument, 0, 't'}, {"work", required_argument, 0, 'w'},
    {"budget", required_argument, 0, 'b'},  {"reserve", required_argument, 0, 'r'},
    {"buffers", required_argument, 0, 'k'}, {"read-size", required_argument, 0, 's'},
    {"depth", required_argument, 0, 'd'},   {"piece", required_argument, 0, 'c'},
    {"reverse", no_argument, 0, 'R'},       {"huge", no_argument, 0, 'H'},
    {"mutant", no_argument, 0, 'M'},        {0, 0, 0, 0},
};

static void parse(int argc, char **argv)
{
    const uint64_t most = INT64_MAX / 4;
    settings = (struct settings){
        .tokens = 8, .threads = 2, .work = 1, .buffers = 2, .read_bytes = 4 << 20};
    int option, index;
    while ((option = getopt_long(argc, argv, "+", options, &index)) != -1) {
        const char *name = option == '?' ? "" : options[index].name;
        switch (option) {
        case 'm': settings.model = optarg; break;
        case 'f': settings.feed = optarg; break;
        case 'p': settings.policy = optarg; break;
        case 'n': settings.tokens = number_option(name, optarg, 2, 1000000); break;
        case 't': settings.threads = (unsigned)number_option(name, optarg, 1, 1024); break;
        case 'w': settings.work = (unsigned)number_option(name, optarg, 1, 1024); break;
        case 'b': settings.budget_bytes = number_option(name, optarg, 1, most); break;
        case 'r': settings.reserve_bytes = number_option(name, optarg, 1, most); break;
        case 'k': settings.buffers = (unsigned)number_option(name, optarg, 2, 1024); break;
        case 's': settings.read_bytes = number_option(name, optarg, ALIGNMENT, 1 << 30); break;
        case 'd': settings.depth = (unsigned)number_option(name, optarg, 1, 1024); break;
        case 'c': settings.piece_bytes = number_option(name, optarg, 0, most); break;
        case 'R': settings.reverse = 1; break;
        case 'H': settings.huge = 1; break;
        case 'M': settings.mutant = 1; break;
        default: usage("see the head of stream.c for its options");
        }
    }
    if (optind < argc || !settings.model || !settings.feed || !settings.policy)
        usage("--model, --feed and --policy are needed, and nothing besides options");
    if (settings.read_bytes % ALIGNMENT || settings.piece_bytes % ALIGNMENT ||
        settings.piece_bytes == ALIGNMENT)
        usage("--read-size %" PRIu64 " --piece %" PRIu64 ": multiples of %d are needed, and of "
              "--piece two",
              settings.read_bytes, settings.piece_bytes, ALIGNMENT);
}

static void begin_policy(void)
{
    const char *name = settings.policy;
    int ring = !strcmp(name, "scheduled+uring");
    if (!settings.budget_bytes)
        settings.budget_bytes = memory_limit();
    if (!settings.reserve_bytes)
        settings.reserve_bytes =
            settings.budget_bytes / 32 > 24 << 20 ? settings.budget_bytes / 32 : 24 << 20;
    if (!settings.depth)
        settings.depth = ring ? 4 : 1;
    if (!strcmp(name, "mmap") || !strncmp(name, "mmap+", 5))
        mapped_begin(name + (name[4] ? 5 : 4));
    else if (!strcmp(name, "read") || !strcmp(name, "direct"))
        buffered_begin(!strcmp(name, "direct"));
    else if (!strcmp(name, "scheduled") || ring)
        scheduled_begin(ring);
    else
        usage("--policy %s: no such policy; there are mmap, mmap+ADVICE, read, direct, scheduled "
              "scheduled+uring and fio",
              name);
}

static uint64_t run_token(uint64_t token)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < model.unit_count; i++) {
        uint64_t position = token * model.unit_count + i;
        const uint8_t *image = policy.acquire(position);
        meter_compute(1);
        sum += compute_unit(unit_at(position), image, token, settings.work, settings.mutant);
        meter_compute(-1);
        policy.release(position);
    }
    return sum;
}

static int by_size(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(const double *values, uint64_t count)
{
    double *sorted = malloc(count * sizeof *sorted);
    if (!sorted)
        fail("no memory for %" PRIu64 " times", count);
    memcpy(sorted, values, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_size);
    double middle = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    free(sorted);
    return middle;
}

static void report_settings(void)
{
    report_text("policy", settings.policy);
    report_text("order", settings.reverse ? "alternating" : "forward");
    report_text("engine", policy.engine);
    report_count("tokens", settings.tokens);
    report_count("layers", model.layers);
    report_count("units", model.unit_count);
    report_count("threads", settings.threads);
    report_count("work", settings.work);
    report_count("buffers", settings.buffers);
    report_count("depth", settings.depth);
    report_count("read_size_bytes", settings.read_bytes);
    report_count("piece_bytes", settings.piece_bytes);
    report_count("huge", (uint64_t)settings.huge);
    report_count("weights_bytes", model.weights_bytes);
    report_count("budget_bytes", settings.budget_bytes);
    report_count("reserve_bytes", settings.reserve_bytes);
}

/* `token_s` of all tokens; `first` and `last` are the ends of the first token and of the last. */
static void report_times(double begun_s, const double *token_s, const struct mark *first,
                         const struct mark *last)
{
    uint64_t steady = settings.tokens - 1;
    double steady_s = last->at_s - first->at_s;
    double compute_s = last->meter.compute_s - first->meter.compute_s;
    double io_s = last->meter.read_s - first->meter.read_s;
    double both_s = last->meter.both_s - first->meter.both_s;
    double bytes = (double)(last->read_bytes - first->read_bytes);
    double weights = (double)model.weights_bytes * (double)steady;
    /* In a mapping reads are page faults within the computation: neither time is known. */
    if (!strcmp(policy.engine, "mmap") || !strcmp(policy.fallback, "mmap"))
        compute_s = io_s = NAN;
    report_figure("s_per_token", median(token_s + 1, steady));
    report_figure("s_per_token_mean", steady_s / (double)steady);
    report_figure("first_token_s", token_s[0]);
    report_figure("request_s", last->at_s - begun_s);
    report_figures("token_s", token_s, settings.tokens);
    report_figure("compute_s", compute_s / (double)steady);
    report_figure("io_s", io_s / (double)steady);
    report_figure("overlap", io_s > 0 ? both_s / io_s : NAN);
    report_figure("compute_bytes_per_s", weights / compute_s);
    report_figure("io_bytes_per_s", io_s > 0 ? bytes / io_s : NAN);
    report_count("read_bytes", last->read_bytes);
    report_count("first_token_read_bytes", first->read_bytes);
    report_figure("bytes_per_token", bytes / (double)steady);
}

static void report_memory(void)
{
    report_count("buffer_bytes", policy.buffer_bytes);
    report_count("retained_bytes", policy.retained_bytes);
    report_count("retained_layers", policy.retained_layers);
    report_count("retained_at_end_bytes", policy.retained_bytes_at_end);
    report_count("retained_at_end_layers", policy.retained_layers_at_end);
    report_count("guard_shrinks", policy.guard_shrinks);
    report_count("guard_returned_bytes", policy.guard_returned_bytes);
    report_text("fallback", policy.fallback);
}

static void report_sums(const uint64_t *sums)
{
    char (*texts)[17] = calloc(settings.tokens, sizeof *texts), all[17];
    const char **list = calloc(settings.tokens, sizeof *list);
    uint64_t combined = 0;
    if (!texts || !list)
        fail("no memory for %" PRIu64 " checksums", settings.tokens);
    for (uint64_t token = 0; token < settings.tokens; token++) {
        snprintf(texts[token], sizeof *texts, "%016" PRIx64, sums[token]);
        list[token] = texts[token];
        combined = mixed(combined ^ sums[token]);
    }
    snprintf(all, sizeof all, "%016" PRIx64, combined);
    report_text("checksum", all);
    report_texts("checksums", list, settings.tokens);
    free(texts), free(list);
}

int main(int argc, char **argv)
{
    double begun_s = now_s();
    report_begin("stream", NULL);
    parse(argc, argv);
    report_begin("stream", settings.model);
    memory_begin();
    model = layers_read(settings.model, settings.feed, settings.piece_bytes);
    if (!strcmp(settings.policy, "fio"))
        return device_measure();
    pool_start(settings.threads);
    begin_policy();

    double *token_s = calloc(settings.tokens, sizeof *token_s);
    uint64_t *sums = calloc(settings.tokens, sizeof *sums);
    if (!token_s || !sums)
        fail("no memory for %" PRIu64 " tokens", settings.tokens);
    struct mark first = {0}, last = {0};
    for (uint64_t token = 0; token < settings.tokens; token++) {
        double from_s = now_s();
        sums[token] = run_token(token);
        token_s[token] = now_s() - from_s;
        if (token == 0)
            first = mark();
    }
    last = mark();
    policy.end();

    report_settings();
    report_times(begun_s, token_s, &first, &last);
    report_memory();
    report_hints(&policy.hints);
    report_sums(sums);
    return report_end();
}
