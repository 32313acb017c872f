/* The loop of a training; trainer_step is one optimizer step.
 *
 * Before it: train_main. After it, in the order of a step: data_loader, pipeline (model), grads,
 * optimizer, log_line, train_ckpt. Every rank takes the same decisions at the same step, because
 * what they depend on (norm, loss, a wish to stop) is summed over the world first.
 */
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "train/blame.h"
#include "train/metrics/log_line.h"
#include "train/metrics/throughput.h"
#include "train/optim/grads.h"
#include "train/optim/optimizer.h"
#include "train/parallel/pipeline.h"
#include "train/parallel/schedule.h"
#include "train/parallel/topology.h"
#include "train/spike.h"
#include "train/train_ckpt.h"
#include "train/train_layout.h"
#include "train/train_state.h"

#define MINUTE_NS 60e9
#define SPIKE_DEVIATIONS 6.0

/* What the ranks agree on in each step, summed in double. */
struct agreement {
    double squared_norm;
    double loss;   /* the step's, as the mean over all its tokens */
    double tokens; /* that the loss counts */
    double stop;   /* ranks that got a signal */
    double late;   /* ranks for which --exit-duration-in-mins is over */
};

/* Means since the last log line. */
struct window {
    double loss_sum;
    uint64_t steps;
    int64_t begin_ns;
};

struct trainer {
    struct trainer_config config;
    struct topology topology;
    struct device *device;
    struct gpt *gpt;
    struct pipeline *pipeline;
    struct grads grads;
    struct optimizer optimizer;
    struct train_state state;
    struct train_ckpt ckpt;
    int64_t micro_batches;     /* of this step */
    struct gpt_batch *batches; /* [micro_batches] of the largest step, and their arrays: */
    int32_t *tokens, *labels;  /* [micro_batches,B,T] */
    float *loss_mask;          /* [micro_batches,B,T]; NULL: every token counts */
    int32_t *starts;           /* [micro_batches,B,T] of documents; NULL: nobody asks */
    int32_t *sample;           /* [T + 1] */
    double token_count;        /* that count in the loss of this rank's micro-batches */
    struct window window;
    struct spike_window recent; /* losses */
    bool logged_once;
    const char *stop;               /* why this step is the last; NULL: it is not */
    struct status_record last_save; /* of the newest try */
};

/* --- signs of life ------------------------------------------------------------------------ */

static struct progress_page *page(struct trainer *trainer)
{
    return progress_page(trainer->config.progress);
}

static void enter_phase(struct trainer *trainer, enum progress_phase phase)
{
    struct progress_page *shown = page(trainer);

    atomic_store(&shown->in_collective, 0);
    atomic_store(&shown->collective, comm_sequence(trainer->config.world));
    atomic_store(&shown->step, trainer->state.scalars.step);
    atomic_store(&shown->committed_step, trainer->ckpt.committed_step);
    progress_set_phase(trainer->config.progress, phase);
}

static void show_micro_batch(void *context, int micro_batch)
{
    struct trainer *trainer = context;

    atomic_store(&page(trainer)->in_collective, 0);
    atomic_store(&page(trainer)->micro_batch, (uint64_t)micro_batch);
    progress_beat(trainer->config.progress);
}

/* --- building ----------------------------------------------------------------------------- */

static enum status create_model(struct trainer *trainer)
{
    enum status st = STATUS_OK;
    const struct train_plan *plan = trainer->config.plan;
    const struct topology *topology = &trainer->topology;
    struct schedule_shape shape = {.stages = plan->layout.pp,
                                   .chunks = plan->chunks,
                                   .micro_batches = (int)plan->micro_batches};
    struct gpt_stage stage = train_layout_stage(plan, topology->coords, topology->tp);
    int slots = schedule_slots(&shape, topology->coords.pp);

    TRY(st, gpt_create(&plan->model, &stage, trainer->device, slots, &trainer->gpt), done);
    TRY(st, gpt_init_params(trainer->gpt), done);
done:
    return st;
}

static enum status create_batches(struct trainer *trainer)
{
    enum status st = STATUS_OK;
    const struct gpt_config *model = &trainer->config.plan->model;
    size_t count = (size_t)trainer->config.plan->micro_batches;
    size_t tokens = (size_t)model->micro_batch * (size_t)model->sequence;

    TRY(st, mem_alloc(&trainer->batches, count, sizeof(*trainer->batches)), done);
    TRY(st, mem_alloc(&trainer->tokens, count * tokens, sizeof(int32_t)), done);
    TRY(st, mem_alloc(&trainer->labels, count * tokens, sizeof(int32_t)), done);
    if (trainer->config.options->eod_mask_loss) {
        TRY(st, mem_alloc(&trainer->loss_mask, count * tokens, sizeof(float)), done);
    }
    if (trainer->config.options->reset_position_ids ||
        trainer->config.options->reset_attention_mask) {
        TRY(st, mem_alloc(&trainer->starts, count * tokens, sizeof(int32_t)), done);
    }
    TRY(st, mem_alloc(&trainer->sample, (size_t)model->sequence + 1, sizeof(int32_t)), done);
    for (size_t m = 0; m < count; m++) {
        trainer->batches[m].tokens = trainer->tokens + m * tokens;
        trainer->batches[m].labels = trainer->labels + m * tokens;
        trainer->batches[m].loss_mask =
            trainer->loss_mask == NULL ? NULL : trainer->loss_mask + m * tokens;
        if (trainer->config.options->reset_position_ids) {
            trainer->batches[m].position_starts = trainer->starts + m * tokens;
        }
        if (trainer->config.options->reset_attention_mask) {
            trainer->batches[m].attention_starts = trainer->starts + m * tokens;
        }
    }
done:
    return st;
}

/* The pipeline's schedule is that of the step's micro-batches. */
static enum status use_batch(struct trainer *trainer, int64_t batch)
{
    const struct train_plan *plan = trainer->config.plan;
    int64_t micro_batches = batch / (plan->model.micro_batch * plan->layout.dp);
    struct pipeline_config config = {.gpt = trainer->gpt,
                                     .device = trainer->device,
                                     .topology = &trainer->topology,
                                     .chunks = plan->chunks,
                                     .micro_batches = (int)micro_batches,
                                     .on_micro_batch = show_micro_batch,
                                     .context = trainer};

    if (micro_batches == trainer->micro_batches) {
        return STATUS_OK;
    }
    trainer->micro_batches = micro_batches;
    pipeline_destroy(&trainer->pipeline);
    return pipeline_create(&config, &trainer->pipeline);
}

static enum status build(struct trainer *trainer)
{
    enum status st = STATUS_OK;
    const struct trainer_config *config = &trainer->config;
    const struct train_options *options = config->options;
    const struct train_plan *plan = config->plan;
    struct optimizer_config adam = {options->adam_beta1, options->adam_beta2, options->adam_eps};

    TRY(st, topology_open(plan->layout, !plan->model.untied, config->world, &trainer->topology),
        done);
    TRY(st, device_open(options->device, config->thread_count, &trainer->device), done);
    TRY(st, create_model(trainer), done);
    TRY(st, create_batches(trainer), done);
    TRY(st, use_batch(trainer, options->global_batch_size), done);
    TRY(st, grads_init(&trainer->grads, trainer->gpt, trainer->device, &trainer->topology), done);
    TRY(st, optimizer_init(&trainer->optimizer, &trainer->grads, &adam), done);
    TRY(st, train_state_init(&trainer->state, &trainer->optimizer), done);
    trainer->state.scalars.seed = plan->model.seed;
    TRY(st,
        train_ckpt_init(&trainer->ckpt, options, plan, config->env, &trainer->topology, config->fs,
                        config->thread_count),
        done);
done:
    return st;
}

enum status trainer_create(const struct trainer_config *config, struct trainer **out_trainer)
{
    enum status st = STATUS_OK;
    struct trainer *trainer = NULL;

    TRY(st, mem_alloc(&trainer, 1, sizeof(*trainer)), done);
    trainer->config = *config;
    trainer->ckpt.committed_step = -1;
    TRY(st, build(trainer), done);
done:
    if (st != STATUS_OK) {
        trainer_destroy(&trainer);
    }
    *out_trainer = trainer;
    return st;
}

void trainer_destroy(struct trainer **address)
{
    struct trainer *trainer = *address;

    if (trainer == NULL) {
        return;
    }
    train_ckpt_deinit(&trainer->ckpt);
    train_state_deinit(&trainer->state);
    optimizer_deinit(&trainer->optimizer);
    grads_deinit(&trainer->grads);
    pipeline_destroy(&trainer->pipeline);
    gpt_destroy(&trainer->gpt);
    device_close(&trainer->device);
    topology_close(&trainer->topology);
    mem_free(&trainer->batches);
    mem_free(&trainer->tokens);
    mem_free(&trainer->labels);
    mem_free(&trainer->loss_mask);
    mem_free(&trainer->starts);
    mem_free(&trainer->sample);
    mem_free(address);
}

struct gpt *trainer_gpt(struct trainer *trainer)
{
    return trainer->gpt;
}

/* --- the phases of a step ----------------------------------------------------------------- */

/* How many of a micro-batch's tokens count in the loss; marks them. */
static size_t mask_loss(struct trainer *trainer, size_t micro_batch)
{
    const struct gpt_config *model = &trainer->config.plan->model;
    size_t count = (size_t)model->micro_batch * (size_t)model->sequence;

    if (trainer->loss_mask == NULL) {
        return count;
    }
    return data_loader_mask_loss(trainer->batches[micro_batch].tokens, count,
                                 (int32_t)trainer->config.options->eod_id,
                                 trainer->loss_mask + micro_batch * count);
}

/* Megatron's "single" order: from `position` on, each micro-batch takes B samples for each DP rank.
 * Stages between first and last need no data, unless attention asks where documents begin. */
static enum status load_batches(struct trainer *trainer, const struct data_source *source,
                                uint64_t position, bool is_training)
{
    enum status st = STATUS_OK;
    const struct train_plan *plan = trainer->config.plan;
    const struct coords *coords = &trainer->topology.coords;
    size_t T = (size_t)plan->model.sequence;
    uint64_t B = (uint64_t)plan->model.micro_batch;
    uint64_t dp = (uint64_t)plan->layout.dp;
    bool has_data = coords->pp == 0 || coords->pp == plan->layout.pp - 1 ||
                    trainer->config.options->reset_attention_mask;
    size_t row = 0;

    trainer->token_count = 0;
    for (uint64_t m = 0; m < (uint64_t)trainer->micro_batches; m++) {
        struct gpt_batch *batch = &trainer->batches[m];
        batch->first_sample = position + (m * dp + (uint64_t)coords->dp) * B;
        batch->step = trainer->state.scalars.step;
        batch->is_training = is_training;
        for (uint64_t b = 0; has_data && b < B; b++, row++) {
            TRY(st, source->get(source->context, batch->first_sample + b, trainer->sample), done);
            memcpy(trainer->tokens + row * T, trainer->sample, T * sizeof(int32_t));
            memcpy(trainer->labels + row * T, trainer->sample + 1, T * sizeof(int32_t));
            if (trainer->starts != NULL) {
                data_loader_find_starts(trainer->sample, T,
                                        (int32_t)trainer->config.options->eod_id,
                                        trainer->starts + row * T);
            }
        }
        /* Each micro-batch's loss is the mean of its own tokens that count. */
        double tokens = (double)mask_loss(trainer, m);
        double parts = (double)trainer->micro_batches * (double)dp;
        batch->loss_scale = (float)(1.0 / ((tokens > 0 ? tokens : 1.0) * parts));
        trainer->token_count += tokens;
    }
done:
    return st;
}

/* Whether this rank's sums of the loss are added to the world's: the TP ranks have equal ones, and
 * the stages before the last have none. */
static bool counts_loss(const struct trainer *trainer)
{
    const struct coords *coords = &trainer->topology.coords;

    return coords->tp == 0 && coords->pp == trainer->config.plan->layout.pp - 1;
}

/* The mean token loss from the world's sums. */
static double mean_loss(double loss_sum, double token_count)
{
    return loss_sum / (token_count > 0 ? token_count : 1.0);
}

static enum status fail_not_finite(struct trainer *trainer, double loss_sum,
                                   const struct agreement *sums)
{
    enum status st = STATUS_OK;
    struct blame_case in = {.world = trainer->config.world,
                            .grads = &trainer->grads,
                            .pipeline = trainer->pipeline,
                            .batches = trainer->batches,
                            .loss_sum = loss_sum};
    struct blame blame;
    char text[STATUS_MESSAGE_MAX / 2];

    TRY(st, blame_find(&in, &blame), done);
    blame_format(&blame, text, sizeof(text));
    st = FAIL(STATUS_NUMERIC,
              "loss %g, gradient norm %g at step %" PRIu64 ": not finite first on rank %d: %s",
              sums->loss, sqrt(sums->squared_norm), trainer->state.scalars.step + 1, blame.rank,
              text);
done:
    return st;
}

static bool is_late(const struct trainer *trainer)
{
    double minutes = trainer->config.options->exit_duration_in_mins;
    int64_t gone_ns = clock_monotonic_ns() - trainer->config.begin_ns;

    return minutes > 0 && (double)gone_ns > minutes * MINUTE_NS;
}

/* Norm, loss and the wish to stop become the same on all ranks. */
static enum status agree(struct trainer *trainer, double loss_sum, struct agreement *out_sums)
{
    enum status st = STATUS_OK;
    bool counts = counts_loss(trainer);
    struct agreement sums = {.loss = counts ? loss_sum : 0.0,
                             .tokens = counts ? trainer->token_count : 0.0,
                             .stop = *trainer->config.stop_signal != 0 ? 1 : 0,
                             .late = is_late(trainer) ? 1 : 0};

    TRY(st, grads_sum_of_squares(&trainer->grads, &sums.squared_norm), done);
    TRY(st,
        comm_all_reduce(trainer->config.world, &sums, sizeof(sums) / sizeof(double), COMM_F64,
                        COMM_SUM),
        done);
    sums.loss = mean_loss(sums.loss, sums.tokens);
    if (trainer->config.options->check_for_nan_in_loss_and_grad &&
        (!isfinite(sums.squared_norm) || !isfinite(sums.loss))) {
        TRY(st, fail_not_finite(trainer, loss_sum, &sums), done);
    }
    trainer->stop = sums.stop > 0   ? "by a signal"
                    : sums.late > 0 ? "by --exit-duration-in-mins"
                                    : NULL;
    *out_sums = sums;
done:
    return st;
}

/* Only a warning: most leaps pass. Collective when there is one. */
static enum status check_spike(struct trainer *trainer, double loss_sum, double loss)
{
    enum status st = STATUS_OK;
    double deviations = spike_add(&trainer->recent, loss);
    struct spike_case in = {.world = trainer->config.world,
                            .grads = &trainer->grads,
                            .loss = counts_loss(trainer) ? mean_loss(loss_sum, trainer->token_count)
                                                         : -1.0,
                            .first_sample = trainer->batches[0].first_sample};
    char text[SPIKE_TEXT_MAX];

    if (!trainer->config.options->check_for_spiky_loss || !(deviations >= SPIKE_DEVIATIONS)) {
        return STATUS_OK;
    }
    TRY(st, spike_explain(&in, text), done);
    if (comm_rank(trainer->config.world) == 0) {
        log_warn("loss %.4g at step %" PRIu64 " is %.1f deviations above those before: %s", loss,
                 trainer->state.scalars.step + 1, deviations, text);
    }
done:
    return st;
}

static int64_t current_batch(const struct trainer *trainer)
{
    return batch_schedule_at(&trainer->config.plan->batch, trainer->state.scalars.consumed_samples);
}

static enum status update(struct trainer *trainer, double norm)
{
    enum status st = STATUS_OK;
    struct train_scalars *scalars = &trainer->state.scalars;
    const struct lr_schedule *schedule = &trainer->ckpt.schedule;
    double rate = lr_schedule_at(schedule, scalars->lr_samples);
    double decay = lr_schedule_weight_decay_at(schedule, scalars->lr_samples);
    uint64_t batch = (uint64_t)current_batch(trainer);

    TRY(st,
        optimizer_step(&trainer->optimizer, scalars->optimizer_updates + 1, rate, decay,
                       grads_clip_scale(norm, trainer->config.options->clip_grad)),
        done);
    TRY(st, optimizer_gather_params(&trainer->optimizer), done);
    scalars->step++;
    scalars->optimizer_updates++;
    scalars->consumed_samples += batch;
    scalars->lr_samples += batch;
done:
    return st;
}

static bool is_last_rank(const struct trainer *trainer)
{
    return comm_rank(trainer->config.world) == comm_size(trainer->config.world) - 1;
}

/* The fields that flags ask for. Collective. */
static enum status add_asked_fields(struct trainer *trainer, struct log_line *line)
{
    enum status st = STATUS_OK;
    const struct train_options *options = trainer->config.options;
    struct {
        double param_squares, zeros;
    } sums = {0};
    uint64_t zeros = 0;

    if (options->log_params_norm) {
        TRY(st, grads_sum_of_param_squares(&trainer->grads, &sums.param_squares), done);
    }
    if (options->log_num_zeros_in_grad) {
        TRY(st, grads_count_zeros(&trainer->grads, &zeros), done);
        sums.zeros = (double)zeros;
    }
    if (options->log_params_norm || options->log_num_zeros_in_grad) {
        TRY(st, comm_all_reduce(trainer->config.world, &sums, 2, COMM_F64, COMM_SUM), done);
    }
    line->has_params_norm = options->log_params_norm;
    line->params_norm = sqrt(sums.param_squares);
    line->has_zero_count = options->log_num_zeros_in_grad;
    line->zero_count = (uint64_t)sums.zeros;
done:
    return st;
}

/* Both conventions side by side, since numbers of different ones are often compared. */
static void tell_throughput(const struct trainer *trainer, struct log_line *line)
{
    const struct train_plan *plan = trainer->config.plan;
    struct throughput sample = throughput_of_sample(&plan->model, plan->layout.tp);
    double seconds = line->step_ms / 1e3 * comm_size(trainer->config.world);
    double samples = (double)line->global_batch / seconds; /* a second, of one rank */
    double peak = trainer->config.options->peak_tflops * 1e12;

    line->has_throughput = true;
    line->tflops = samples * sample.causal_flops / 1e12;
    if (peak > 0) {
        log_info("%.0f tokens/s a rank, MFU %.1f %% (causal attention) or %.1f %% (full)",
                 samples * plan->model.sequence, 100 * samples * sample.causal_flops / peak,
                 100 * samples * sample.full_flops / peak);
    } else {
        log_info("%.0f tokens/s a rank", samples * plan->model.sequence);
    }
}

/* Collective. */
static enum status log_step(struct trainer *trainer, double loss, double norm)
{
    enum status st = STATUS_OK;
    const struct train_scalars *scalars = &trainer->state.scalars;
    struct window *window = &trainer->window;
    int64_t now_ns = clock_monotonic_ns();
    char text[LOG_LINE_TEXT_MAX];

    if (trainer->config.on_step != NULL) {
        trainer->config.on_step(trainer->config.on_step_context, scalars->step, loss, norm);
    }
    window->loss_sum += loss;
    window->steps++;
    if (trainer->logged_once && scalars->step % (uint64_t)trainer->config.options->log_interval) {
        return STATUS_OK;
    }
    struct log_line line = {
        .wall_ns = clock_wall_ns(),
        .step = scalars->step,
        .train_steps = trainer->config.plan->train_steps,
        .consumed_samples = scalars->consumed_samples,
        .step_ms = (double)(now_ns - window->begin_ns) / 1e6 / (double)window->steps,
        .learning_rate = lr_schedule_at(&trainer->ckpt.schedule, scalars->lr_samples),
        .global_batch = (uint64_t)(trainer->micro_batches * trainer->config.plan->layout.dp *
                                   trainer->config.plan->model.micro_batch),
        .loss = window->loss_sum / (double)window->steps,
        .grad_norm = norm,
    };
    TRY(st, add_asked_fields(trainer, &line), done);
    if (trainer->config.options->log_throughput) {
        tell_throughput(trainer, &line);
    }
    if (is_last_rank(trainer)) {
        log_line_format(&line, text);
        fprintf(trainer->config.out, "%s\n", text);
        fflush(trainer->config.out);
    }
    trainer->logged_once = true;
    *window = (struct window){.begin_ns = now_ns};
done:
    return st;
}

/* Forward only over --eval-iters global batches of a source, from *position on. `set` as in
 * log_line_format_validation. */
static enum status evaluate(struct trainer *trainer, const struct data_source *source,
                            uint64_t *position, const char *set)
{
    enum status st = STATUS_OK;
    const struct train_options *options = trainer->config.options;
    char text[LOG_LINE_TEXT_MAX];
    double sums[2] = {0}; /* of the loss, and of the tokens that count in it */

    enter_phase(trainer, PROGRESS_EVAL);
    TRY(st, use_batch(trainer, options->global_batch_size), done);
    for (int64_t i = 0; i < options->eval_iters; i++) {
        double loss_sum = 0;
        TRY(st, load_batches(trainer, source, *position, false), done);
        TRY(st, pipeline_evaluate(trainer->pipeline, trainer->batches, &loss_sum), done);
        sums[0] += counts_loss(trainer) ? loss_sum : 0.0;
        sums[1] += counts_loss(trainer) ? trainer->token_count : 0.0;
        *position += (uint64_t)options->global_batch_size;
    }
    TRY(st, comm_all_reduce(trainer->config.world, sums, 2, COMM_F64, COMM_SUM), done);
    if (is_last_rank(trainer)) {
        log_line_format_validation(trainer->state.scalars.step, set, mean_loss(sums[0], sums[1]),
                                   text);
        fprintf(trainer->config.out, "%s\n", text);
        fflush(trainer->config.out);
    }
done:
    return st;
}

static bool evaluates(const struct trainer *trainer)
{
    return trainer->config.options->eval_interval > 0 && trainer->config.options->eval_iters > 0;
}

/* Once the last step is saved: what this consumes no run goes on from. */
static enum status evaluate_after_training(struct trainer *trainer)
{
    enum status st = STATUS_OK;
    uint64_t valid_position = trainer->state.scalars.consumed_valid_samples, test_position = 0;

    if (!evaluates(trainer)) {
        return STATUS_OK;
    }
    TRY(st, evaluate(trainer, &trainer->config.valid, &valid_position, "validation"), done);
    if (trainer->config.test.get != NULL) {
        TRY(st, evaluate(trainer, &trainer->config.test, &test_position, "test"), done);
    }
done:
    return st;
}

/* A save that fails is logged and tried again at the next interval, unless the run cannot go on. */
static enum status save(struct trainer *trainer)
{
    enum status st = STATUS_OK;

    enter_phase(trainer, PROGRESS_SAVE);
    st = train_ckpt_save(&trainer->ckpt, &trainer->state);
    trainer->last_save = (struct status_record){.code = STATUS_OK};
    if (st != STATUS_OK) {
        status_take(&trainer->last_save);
    }
    atomic_store(&page(trainer)->committed_step, trainer->ckpt.committed_step);
    if (st != STATUS_OK && !train_ckpt_is_fatal(st)) {
        if (comm_rank(trainer->config.world) == 0) {
            log_error("step %" PRIu64 " is not saved: %s; training goes on, the next try is at the "
                      "next interval",
                      trainer->state.scalars.step, status_last()->message);
        }
        st = STATUS_OK;
    }
    return st;
}

static bool is_due(const struct trainer *trainer, int64_t interval)
{
    return interval > 0 && trainer->state.scalars.step % (uint64_t)interval == 0;
}

/* The last step of this process, for whatever reason. */
static bool is_leaving(const struct trainer *trainer)
{
    return trainer->state.scalars.step >= trainer->config.plan->train_steps ||
           trainer->stop != NULL || is_due(trainer, trainer->config.options->exit_interval);
}

static enum status evaluate_and_save_if_due(struct trainer *trainer)
{
    enum status st = STATUS_OK;
    const struct train_options *options = trainer->config.options;

    if (evaluates(trainer) && is_due(trainer, options->eval_interval)) {
        TRY(st,
            evaluate(trainer, &trainer->config.valid,
                     &trainer->state.scalars.consumed_valid_samples, ""),
            done);
    }
    if (options->save[0] != 0 && (is_due(trainer, options->save_interval) || is_leaving(trainer))) {
        TRY(st, save(trainer), done);
    }
done:
    return st;
}

/* Whether --iterations-to-skip, which train_options has checked, lists the steps done so far. */
static bool is_skipped(const struct trainer *trainer)
{
    const char *at = trainer->config.options->iterations_to_skip;

    while (*at != 0) {
        char *end = NULL;
        if (strtoull(at, &end, 10) == trainer->state.scalars.step) {
            return true;
        }
        at = end + strspn(end, " ");
    }
    return false;
}

/* The samples are consumed and the learning rate stays, as in Megatron. */
static enum status skip_step(struct trainer *trainer)
{
    struct train_scalars *scalars = &trainer->state.scalars;

    log_info("step %" PRIu64 " is skipped: --iterations-to-skip", scalars->step + 1);
    scalars->consumed_samples += (uint64_t)current_batch(trainer);
    scalars->step++;
    return evaluate_and_save_if_due(trainer);
}

/* --- the step and the loop ---------------------------------------------------------------- */

static enum status trainer_step(struct trainer *trainer)
{
    enum status st = STATUS_OK;
    uint64_t position = trainer->state.scalars.consumed_samples;
    struct agreement sums = {0};
    double loss_sum = 0;

    enter_phase(trainer, PROGRESS_STEP);
    TRY(st, use_batch(trainer, current_batch(trainer)), done);
    TRY(st, load_batches(trainer, &trainer->config.train, position, true), done);
    TRY(st, grads_zero(&trainer->grads), done);
    TRY(st, pipeline_train(trainer->pipeline, trainer->batches, &loss_sum), done);
    TRY(st, grads_reduce(&trainer->grads), done);
    TRY(st, agree(trainer, loss_sum, &sums), done);
    TRY(st, check_spike(trainer, loss_sum, sums.loss), done);
    TRY(st, update(trainer, sqrt(sums.squared_norm)), done);
    TRY(st, log_step(trainer, sums.loss, sqrt(sums.squared_norm)), done);
    TRY(st, evaluate_and_save_if_due(trainer), done);
done:
    return st;
}

/* What the last step's end means to who started this process. */
static enum status conclude(struct trainer *trainer)
{
    enum status st = STATUS_OK;
    const struct train_scalars *scalars = &trainer->state.scalars;
    bool is_whole = scalars->step >= trainer->config.plan->train_steps;
    uint64_t hash = 0;

    TRY(st, train_state_hash(&trainer->state, &hash), done);
    log_info("final state hash 0x%016" PRIx64 " at step %" PRIu64, hash, scalars->step);
    if (trainer->last_save.code != STATUS_OK) {
        st = FAIL(trainer->last_save.code,
                  "the last step %" PRIu64 " is not saved; newest checkpoint: step %" PRId64
                  "; why: %.600s",
                  scalars->step, trainer->ckpt.committed_step, trainer->last_save.message);
    } else if (is_whole) {
        TRY(st, evaluate_after_training(trainer), done);
    } else if (trainer->stop != NULL && trainer->config.options->save[0] == 0) {
        st = FAIL(STATUS_INTERRUPTED,
                  "stopped %s after step %" PRIu64 "; without --save nothing is kept",
                  trainer->stop, scalars->step);
    } else if (trainer->stop != NULL) {
        st = FAIL(STATUS_STOPPED,
                  "stopped %s after step %" PRIu64 ", which is saved; start again to go on",
                  trainer->stop, scalars->step);
    }
done:
    return st;
}

enum status trainer_run(struct trainer *trainer)
{
    enum status st = STATUS_OK;
    bool is_done = false;

    enter_phase(trainer, PROGRESS_LOAD);
    TRY(st, train_ckpt_begin(&trainer->ckpt, &trainer->state, &is_done), done);
    trainer->window.begin_ns = clock_monotonic_ns();
    while (!is_done) {
        TRY(st, is_skipped(trainer) ? skip_step(trainer) : trainer_step(trainer), done);
        is_done = is_leaving(trainer);
        if (is_done) {
            TRY(st, conclude(trainer), done);
        }
    }
done:
    return st;
}
