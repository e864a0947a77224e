/*
 * Policy `fio`: no computing, only what the device needs to read the weights once, in order.
 */
#include "device.h"

#include "fio.h"
#include "policy.h"

#include <inttypes.h>

/* The file that holds most of the weights, from its first one to its last. */
static struct fio_job job_of(const struct model *model)
{
    uint64_t first = UINT64_MAX, end = 0, most = 0;
    const struct file *largest = &model->files[0];
    for (size_t i = 0; i < model->file_count; i++)
        if (model->files[i].bytes > most)
            largest = &model->files[i], most = largest->bytes;
    for (size_t i = 0; i < model->unit_count; i++) {
        const struct unit *unit = &model->units[i];
        for (size_t part = 0; part < unit->part_count; part++) {
            const struct part *at = &unit->parts[part];
            if (at->file != largest)
                continue;
            first = at->offset < first ? at->offset : first;
            end = at->offset + at->bytes > end ? at->offset + at->bytes : end;
        }
    }
    uint64_t block = settings.read_bytes;
    first -= first % ALIGNMENT;
    if (end < first + block)
        fail("%s: holds no whole read of %" PRIu64 " bytes for fio", largest->path, block);
    uint64_t reads = (end - first) / block;
    return (struct fio_job){
        .path = largest->path,
        .pattern = "read",
        .offset = first,
        .bytes = reads * block,
        .block_bytes = block,
        .reads = reads,
        .depth = settings.depth ? settings.depth : 2,
    };
}

int device_measure(void)
{
    files_open_direct(&model); /* it says in plain words where there is none */
    struct fio_job job = job_of(&model);
    struct fio_result result = fio_run(&job);
    double bytes_per_s = (double)result.bytes / result.seconds;
    report_text("policy", settings.policy);
    report_count("layers", model.layers);
    report_count("weights_bytes", model.weights_bytes);
    report_count("read_size_bytes", job.block_bytes);
    report_count("depth", job.depth);
    report_figure("s_per_token", (double)model.weights_bytes / bytes_per_s);
    report_count("bytes_per_token", model.weights_bytes);
    report_figure("io_bytes_per_s", bytes_per_s);
    report_text("fio_version", result.version);
    return report_end();
}
