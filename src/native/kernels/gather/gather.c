/*
 * gather: gathers the rows of a table in the order of a trace, as a lazily read embedding table is
 * gathered, and tells what that costs.
 *
 *   gather --model PATH --feed TRACE [--strategy S] [--batch N] [--ahead N] [--depth N]
 *          [--hinters N] [--mutant]
 *
 * PATH is the model, beside which the file of the table lies; trace.h says what a TRACE is. The
 * rows of --batch gathers (512) are planned together, --ahead batches (1) before they are gathered
 * (0: just before). --depth (64) is the number of reads in flight of the strategies that read.
 * --hinters (0) is the number of threads that give the advice, 0: the one that gathers.
 * --mutant gathers another row first, so the checksum must differ.
 *
 * Strategies: `plain`: the mapping as it is, with the kernel's own read-ahead. `skip`: the same,
 * under the name of the engine's arm (no prefetch, no MADV_RANDOM). `random`: MADV_RANDOM.
 * `random+readahead`: that, and MADV_WILLNEED on each range of a batch. `plain+readahead`: only the
 * latter. `process_madvise`: as random+readahead, one call a batch. `populate`: MADV_RANDOM, and
 * MADV_POPULATE_READ on each range. `pread`, `uring`: no mapping, but reads of whole pages into
 * buffers, by threads or io_uring; `pread-direct`, `uring-direct`: the same past the page cache.
 * `fio`: the device's limit beside them; as many random reads as the trace has pages.
 *
 * All but fio give the same checksum, which depends on each byte and on the order. Exit statuses
 * and the form of the result: report.h. Nothing is done about the cache before: the caller's task.
 */
#define _GNU_SOURCE
#include "advise.h"
#include "fio.h"
#include "hinters.h"
#include "plan.h"
#include "reader.h"
#include "report.h"
#include "table.h"
#include "trace.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum way { MAPPED, READ, FIO };

static const struct strategy {
    const char *name;
    enum way way;
    int random;
    enum advice advice;
    enum reader_kind kind;
    int direct;
} strategies[] = {
    {.name = "plain", .way = MAPPED},
    {.name = "skip", .way = MAPPED},
    {.name = "random", .way = MAPPED, .random = 1},
    {.name = "random+readahead", .way = MAPPED, .random = 1, .advice = WILLNEED},
    {.name = "plain+readahead", .way = MAPPED, .advice = WILLNEED},
    {.name = "process_madvise", .way = MAPPED, .random = 1, .advice = WILLNEED_VECTOR},
    {.name = "populate", .way = MAPPED, .random = 1, .advice = POPULATE_READ},
    {.name = "pread", .way = READ, .kind = BY_THREADS},
    {.name = "pread-direct", .way = READ, .kind = BY_THREADS, .direct = 1},
    {.name = "uring", .way = READ, .kind = BY_RING},
    {.name = "uring-direct", .way = READ, .kind = BY_RING, .direct = 1},
    {.name = "fio", .way = FIO},
};

struct options {
    const char *model, *feed;
    const struct strategy *strategy;
    uint64_t batch, ahead, depth, hinters;
    int mutant;
};

struct work {
    const struct options *options;
    const struct table *table;
    const struct trace *trace;
    struct plan *plans; /* of the batches that are under way: ahead + 1, by batch number */
    uint64_t batches;
    struct hints hints;
    uint64_t checksum, requested_bytes;
};

static const struct strategy *find_strategy(const char *name)
{
    const size_t count = sizeof strategies / sizeof *strategies;
    char names[512] = "";
    for (size_t i = 0; i < count; i++) {
        if (strcmp(strategies[i].name, name) == 0)
            return &strategies[i];
        strcat(strcat(names, " "), strategies[i].name);
    }
    usage("--strategy %s: one of%s is needed", name, names);
}

static struct options parse(int argc, char **argv)
{
    static const struct option known[] = {
        {"model", required_argument, 0, 'm'}, {"feed", required_argument, 0, 'f'},
        {"strategy", required_argument, 0, 's'}, {"batch", required_argument, 0, 'b'},
        {"ahead", required_argument, 0, 'a'}, {"depth", required_argument, 0, 'd'},
        {"hinters", required_argument, 0, 'h'}, {"mutant", no_argument, 0, 'x'}, {0, 0, 0, 0},
    };
    struct options options = {.strategy = strategies, .batch = 512, .ahead = 1, .depth = 64};
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'm': options.model = optarg; break;
        case 'f': options.feed = optarg; break;
        case 's': options.strategy = find_strategy(optarg); break;
        case 'b': options.batch = number_option("--batch", optarg, 1, 1 << 24); break;
        case 'a': options.ahead = number_option("--ahead", optarg, 0, 1 << 12); break;
        case 'd': options.depth = number_option("--depth", optarg, 1, 4096); break;
        case 'h': options.hinters = number_option("--hinters", optarg, 0, 64); break;
        case 'x': options.mutant = 1; break;
        default: exit(USAGE); /* getopt has said why */
        }
    }
    if (optind < argc)
        usage("%s: what is this argument for?", argv[optind]);
    if (!options.model || !options.feed)
        usage("--model and --feed are needed; see the head of gather.c");
    return options;
}

/* A row's bytes as eight at a time, each with a weight of its own; what is left at the end counts
 * as filled up with zeros. */
static uint64_t row_sum(const char *row, uint64_t bytes)
{
    uint64_t sum = 0, weight = 1, word;
    for (; bytes >= sizeof word; row += sizeof word, bytes -= sizeof word, weight += 2) {
        memcpy(&word, row, sizeof word);
        sum += word * weight;
    }
    if (bytes) {
        word = 0;
        memcpy(&word, row, bytes);
        sum += word * weight;
    }
    return sum;
}

static void touch(struct work *work, const char *row)
{
    static const uint64_t prime = 0x100000001b3; /* FNV's, any odd number would do */
    work->checksum = work->checksum * prime + row_sum(row, work->table->row_bytes);
}

static struct plan *plan_of(const struct work *work, uint64_t number)
{
    return &work->plans[number % (work->options->ahead + 1)];
}

static struct plan *make_plan(const struct work *work, uint64_t number)
{
    const struct options *options = work->options;
    struct plan *plan = plan_of(work, number);
    plan_batch(plan, work->table, work->trace, options->batch, number);
    return plan;
}

static void gather_mapped(struct work *work)
{
    const struct options *options = work->options;
    const struct table *table = work->table;
    const char *rows = table->mapped + table->offset % table->page;
    enum advice advice = options->strategy->advice;
    struct hinters *hinters = NULL;
    uint64_t advised = 0; /* batches */
    if (options->strategy->random)
        advise_random(table, &work->hints);
    if (advice != NO_ADVICE && options->hinters)
        hinters = hinters_start(table, work->trace, advice, (unsigned)options->hinters,
                                options->batch, options->ahead, &work->hints);
    for (uint64_t gather = 0; gather < work->trace->count; gather++) {
        uint64_t wanted = gather / options->batch + options->ahead + 1;
        if (hinters && gather % options->batch == 0)
            hinters_reach(hinters, gather / options->batch);
        else if (advice != NO_ADVICE && gather % options->batch == 0)
            for (; advised < wanted && advised < work->batches; advised++)
                work->requested_bytes +=
                    advise(table, make_plan(work, advised), advice, &work->hints);
        touch(work, rows + trace_row(work->trace, gather) * table->row_bytes);
    }
    if (hinters)
        work->requested_bytes = hinters_end(hinters);
}

static void gather_read(struct work *work, struct reader *reader)
{
    const struct table *table = work->table;
    uint64_t slots = work->options->ahead + 1, begun = 0; /* batches */
    for (uint64_t number = 0; number < work->batches; number++) {
        for (; begun < number + slots && begun < work->batches; begun++)
            reader_begin(reader, (unsigned)(begun % slots), make_plan(work, begun));
        const char *buffer = reader_wait(reader, (unsigned)(number % slots));
        const struct plan *plan = plan_of(work, number);
        for (uint64_t i = 0; i < plan->count; i++) {
            uint64_t start = row_start(table, trace_row(work->trace, plan->first + i));
            uint64_t at = plan_find(plan, start / table->page);
            touch(work, buffer + at * table->page + start % table->page);
        }
    }
    work->requested_bytes = reader_bytes(reader);
}

/* The buffers' size: the most pages that a batch needs. */
static uint64_t most_pages(const struct work *work)
{
    uint64_t most = 0;
    for (uint64_t number = 0; number < work->batches; number++) {
        uint64_t pages = make_plan(work, number)->pages;
        most = pages > most ? pages : most;
    }
    return most;
}

static void take_plans(struct work *work)
{
    const struct options *options = work->options;
    uint64_t batch = options->batch < work->trace->count ? options->batch : work->trace->count;
    work->batches = (work->trace->count - 1) / options->batch + 1;
    work->plans = calloc(options->ahead + 1, sizeof *work->plans);
    if (!work->plans)
        fail("no memory for %llu batches", (unsigned long long)options->ahead + 1);
    for (uint64_t i = 0; i <= options->ahead; i++)
        plan_init(&work->plans[i], batch);
}

static void report_what(const struct options *options, const struct trace *trace, uint64_t rows,
                        uint64_t pages)
{
    report_text("strategy", options->strategy->name);
    report_count("gathers", trace->count);
    report_count("rows_unique", rows);
    report_count("pages_unique", pages);
    report_count("batch", options->batch);
    report_count("ahead", options->ahead);
    report_count("depth", options->depth);
    report_count("hinters", options->hinters);
}

static int gather(const struct options *options, const struct table *table,
                  const struct trace *trace)
{
    struct work work = {.options = options, .table = table, .trace = trace};
    struct reader *reader = NULL;
    take_plans(&work);
    if (options->strategy->way == READ)
        reader = reader_open(table, options->strategy->kind, options->strategy->direct,
                             (unsigned)options->depth, (unsigned)options->ahead + 1,
                             most_pages(&work), &work.hints);
    uint64_t resident_before = table_resident_bytes(table);

    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    double start_s = now_s();
    if (reader)
        gather_read(&work, reader);
    else
        gather_mapped(&work);
    double gather_s = now_s() - start_s;
    getrusage(RUSAGE_SELF, &after);

    uint64_t resident = table_resident_bytes(table), rows, pages;
    table_count_unique(table, trace, &rows, &pages);
    report_what(options, trace, rows, pages);
    report_figure("gather_s", gather_s);
    report_figure("ns_per_gather", gather_s * 1e9 / (double)trace->count);
    report_figure("ns_per_page", gather_s * 1e9 / (double)pages);
    report_hints(&work.hints);
    report_count("requested_bytes", work.requested_bytes);
    char checksum[17];
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)work.checksum);
    report_text("checksum", checksum);
    report_count("resident_before_bytes", resident_before);
    report_count("resident_bytes", resident);
    report_count("major_faults", (uint64_t)(after.ru_majflt - before.ru_majflt));
    report_count("minor_faults", (uint64_t)(after.ru_minflt - before.ru_minflt));
    return report_end();
}

/* As many random reads as the trace has pages, in the table's range. */
static struct fio_job device_job(const struct table *table, uint64_t reads, unsigned depth)
{
    enum { BLOCK_BYTES = 4096 };
    close(table_open_direct(table)); /* it says in plain words where there is none */
    /* fio reads whole blocks only: a last one that the file holds a part of is left out. */
    uint64_t start = table->first_page * table->page, bytes = table->pages * table->page;
    if (start + bytes > table->file_bytes)
        bytes = (table->file_bytes - start) / BLOCK_BYTES * BLOCK_BYTES;
    if (bytes == 0)
        fail("%s: no whole block of %d bytes for fio to read", table->path, BLOCK_BYTES);
    return (struct fio_job){
        .path = table->path,
        .pattern = "randread",
        .offset = start,
        .bytes = bytes,
        .block_bytes = BLOCK_BYTES,
        .reads = reads < bytes / BLOCK_BYTES ? reads : bytes / BLOCK_BYTES,
        .depth = depth,
    };
}

static int measure_device(const struct options *options, const struct table *table,
                          const struct trace *trace)
{
    uint64_t rows, pages, resident_before = table_resident_bytes(table);
    table_count_unique(table, trace, &rows, &pages);
    struct fio_job job = device_job(table, pages, (unsigned)options->depth);
    struct fio_result result = fio_run(&job);
    report_what(options, trace, rows, pages);
    report_figure("gather_s", result.seconds);
    report_figure("ns_per_gather", result.seconds * 1e9 / (double)result.reads);
    report_figure("ns_per_page", result.seconds * 1e9 / (double)result.reads);
    report_figure("device_iops", result.iops);
    report_text("fio_version", result.version);
    report_count("requested_bytes", result.bytes);
    report_count("resident_before_bytes", resident_before);
    report_count("resident_bytes", table_resident_bytes(table));
    return report_end();
}

int main(int argc, char **argv)
{
    report_begin("gather", NULL);
    struct options options = parse(argc, argv);
    struct trace trace;
    struct table table;
    trace_open(&trace, options.feed);
    table_open(&table, options.model, &trace);
    report_begin("gather", table.path);
    if (options.strategy->way == MAPPED)
        table_map(&table);
    trace_read_indices(&trace);
    if (options.mutant)
        trace_mutate(&trace);
    if (options.strategy->way == FIO)
        return measure_device(&options, &table, &trace);
    return gather(&options, &table, &trace);
}
