/* The CPU device: its vtable, its memory and how it shares work among threads.
 *
 * oneDNN and our loops use the same OpenMP pool, so a device that is opened with n threads never
 * runs more than n. Memory comes from ckpt/base/mem.h: zeroed, on huge pages when large.
 */
#include "train/device/device_cpu.h"

#include <omp.h>
#include <string.h>

#include "ckpt/base/mem.h"

#define THREADS_MAX 1024

static void close_device(struct device *device)
{
    struct device_cpu *cpu = cpu_of(device);

    mem_free(&cpu->workspace);
    mem_free(&cpu);
}

static enum status alloc_memory(struct device *device, void **out, size_t bytes)
{
    (void)device;
    return mem_alloc(out, bytes, 1);
}

static void free_memory(struct device *device, void *memory)
{
    (void)device;
    mem_free(&memory);
}

static enum status copy_bytes(struct device *device, void *to, const void *from, size_t bytes)
{
    (void)device;
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return STATUS_OK;
}

static enum status fill_zero(struct device *device, void *memory, size_t bytes)
{
    int threads = cpu_threads(device, bytes / sizeof(float));

#pragma omp parallel num_threads(threads)
    {
        struct cpu_range part =
            cpu_share(bytes, MEM_ALIGN, omp_get_thread_num(), omp_get_num_threads());
        memset((char *)memory + part.begin, 0, part.end - part.begin);
    }
    return STATUS_OK;
}

static enum status synchronize(struct device *device)
{
    (void)device;
    return STATUS_OK;
}

static const struct device_ops ops = {
    .name = "cpu",
    .close = close_device,
    .alloc = alloc_memory,
    .free = free_memory,
    .copy_in = copy_bytes,
    .copy_out = copy_bytes,
    .copy = copy_bytes,
    .fill_zero = fill_zero,
    .synchronize = synchronize,
    .embed_forward = cpu_embed_forward,
    .embed_backward = cpu_embed_backward,
    .dropout = cpu_dropout,
    .layernorm_forward = cpu_layernorm_forward,
    .residual_layernorm_forward = cpu_residual_layernorm_forward,
    .layernorm_backward = cpu_layernorm_backward,
    .linear_forward = cpu_linear_forward,
    .linear_backward = cpu_linear_backward,
    .gelu_forward = cpu_gelu_forward,
    .gelu_backward = cpu_gelu_backward,
    .attention_forward = cpu_attention_forward,
    .attention_backward = cpu_attention_backward,
    .loss_max = cpu_loss_max,
    .loss_sums = cpu_loss_sums,
    .loss_finish = cpu_loss_finish,
    .loss_whole = cpu_loss_whole,
    .add = cpu_add,
    .scale = cpu_scale,
    .sum_of_squares = cpu_sum_of_squares,
    .adamw = cpu_adamw,
};

enum status device_cpu_open(int thread_count, struct device **out_device)
{
    struct device_cpu *cpu = NULL;
    enum status st = STATUS_OK;

    if (thread_count < 0 || thread_count > THREADS_MAX) {
        return FAIL(STATUS_USAGE, "thread count %d is not in 0 .. %d", thread_count, THREADS_MAX);
    }
    TRY(st, mem_alloc(&cpu, 1, sizeof(*cpu)), done);
    cpu->base.ops = &ops;
    cpu->thread_count = thread_count > 0 ? thread_count : omp_get_num_procs();
    omp_set_num_threads(cpu->thread_count);
    *out_device = &cpu->base;
done:
    return st;
}

enum status cpu_workspace(struct device *device, size_t bytes, float **out)
{
    struct device_cpu *cpu = cpu_of(device);
    enum status st = STATUS_OK;

    if (bytes > cpu->workspace_bytes) {
        mem_free(&cpu->workspace);
        cpu->workspace_bytes = 0;
        TRY(st, mem_alloc(&cpu->workspace, bytes, 1), done);
        cpu->workspace_bytes = bytes;
    }
    *out = cpu->workspace;
done:
    return st;
}

int cpu_threads(const struct device *device, size_t elements)
{
    return elements < CPU_PARALLEL_MIN ? 1 : ((const struct device_cpu *)device)->thread_count;
}

struct cpu_range cpu_share(size_t count, size_t align, int index, int parts)
{
    size_t units = (count + align - 1) / align;
    size_t begin = units * (size_t)index / (size_t)parts * align;
    size_t end = units * (size_t)(index + 1) / (size_t)parts * align;

    return (struct cpu_range){begin < count ? begin : count, end < count ? end : count};
}
