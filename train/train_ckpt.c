/* Where a run begins and what it saves. Before it: train_options, train_state; after it: ckpt.h.
 *
 *     --load / --save ... choose -> check options -> load -> lease of --save -> set later aside
 *
 * What only rank 0 can see (a directory's content) is judged there, and the verdict is broadcast,
 * so that all ranks leave with the same status and message.
 */
#include "train/train_ckpt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/lease.h"
#include "train/train_schedule.h"

#define PRUNED_MAX 8 /* checkpoints that may be pruned between being chosen and being read */

/* --- ranks -------------------------------------------------------------------------------- */

static enum status gather_bytes(void *context, const void *mine, size_t bytes, void *all)
{
    struct train_ckpt *ckpt = context;

    for (int i = 0; i < ckpt->group.size; i++) {
        ckpt->byte_counts[i] = bytes;
    }
    memcpy((char *)all + (size_t)ckpt->group.rank * bytes, mine, bytes);
    return comm_all_gather(ckpt->topology->world, all, ckpt->byte_counts);
}

static enum status broadcast_bytes(void *context, void *buffer, size_t bytes)
{
    struct train_ckpt *ckpt = context;

    return comm_broadcast(ckpt->topology->world, buffer, bytes, 0);
}

/* Rank 0's verdict becomes everyone's. */
static enum status share_verdict(struct train_ckpt *ckpt, enum status mine)
{
    enum status st = STATUS_OK;
    struct {
        int32_t status;
        char message[STATUS_MESSAGE_MAX];
    } verdict = {.status = (int32_t)mine};

    if (mine != STATUS_OK) {
        snprintf(verdict.message, sizeof(verdict.message), "%s", status_last()->message);
    }
    TRY(st, comm_broadcast(ckpt->topology->world, &verdict, sizeof(verdict), 0), done);
    if (verdict.status != STATUS_OK && ckpt->group.rank != 0) {
        return FAIL((enum status)verdict.status, "%s", verdict.message);
    }
    st = (enum status)verdict.status;
done:
    return st;
}

enum status train_ckpt_init(struct train_ckpt *ckpt, const struct train_options *options,
                            const struct train_plan *plan, const struct run_env *env,
                            const struct topology *topology, struct fs *fs, int thread_count)
{
    *ckpt = (struct train_ckpt){.options = options,
                                .plan = plan,
                                .env = env,
                                .topology = topology,
                                .fs = fs,
                                .thread_count = thread_count,
                                .acting = *options,
                                .schedule = plan->schedule,
                                .committed_step = -1};
    ckpt->group = (struct ckpt_group){.rank = comm_rank(topology->world),
                                      .size = comm_size(topology->world),
                                      .context = ckpt,
                                      .all_gather = gather_bytes,
                                      .broadcast = broadcast_bytes};
    return mem_alloc(&ckpt->byte_counts, (size_t)ckpt->group.size, sizeof(*ckpt->byte_counts));
}

void train_ckpt_deinit(struct train_ckpt *ckpt)
{
    ckpt_writer_close(&ckpt->writer);
    mem_free(&ckpt->byte_counts);
}

/* --- where to begin ----------------------------------------------------------------------- */

/* Rank 0: raises *step to the newest checkpoint in --save that this very run has written. The agent
 * may not have seen the last commit before the ranks died. */
static enum status find_own_step(const struct train_ckpt *ckpt, int64_t *step)
{
    enum status st = STATUS_OK;
    struct catalog catalog = {0};

    TRY(st, catalog_scan(ckpt->fs, ckpt->options->save, &catalog), done);
    for (size_t i = 0; i < catalog.count; i++) {
        const struct catalog_entry *entry = &catalog.entries[i];
        if (entry->usable && strcmp(entry->manifest.run_id, ckpt->env->run_id) == 0 &&
            (int64_t)entry->step > *step) {
            *step = (int64_t)entry->step;
        }
    }
done:
    catalog_deinit(&catalog);
    return st;
}

/* The newest step that this run is known to have committed, equal on all ranks. */
static enum status agree_on_own_step(struct train_ckpt *ckpt)
{
    enum status st = STATUS_OK, verdict = STATUS_OK;

    ckpt->own_step = ckpt->env->committed_step;
    if (ckpt->group.rank == 0 && ckpt->options->save[0] != 0 && ckpt->env->run_id[0] != 0) {
        verdict = find_own_step(ckpt, &ckpt->own_step);
    }
    TRY(st, share_verdict(ckpt, verdict), done);
    TRY(st, comm_broadcast(ckpt->topology->world, &ckpt->own_step, sizeof(ckpt->own_step), 0),
        done);
done:
    return st;
}

/* What the flags ask for. Flags that say where a run begins count until it has committed a step of
 * its own: an agent starts it again with the same command line, and then --save has the newest. */
struct origin {
    const char *directory; /* "" for none */
    bool exact;
    uint64_t step; /* with `exact` */
    bool from_scratch;
};

static struct origin find_origin(const struct train_ckpt *ckpt)
{
    const struct train_options *options = ckpt->options;
    int64_t committed = ckpt->own_step;
    struct origin origin = {.directory = options->load,
                            .exact = options->ckpt_step >= 0,
                            .step = options->ckpt_step >= 0 ? (uint64_t)options->ckpt_step : 0,
                            .from_scratch = options->from_scratch};

    if (committed >= 0 && options->save[0] != 0) {
        origin.directory = options->save;
    }
    if (committed >= 0 && origin.from_scratch) {
        log_info("--from-scratch is done: this run has committed step %" PRId64 " and goes on",
                 committed);
        origin.from_scratch = false;
    }
    if (origin.exact && committed > options->ckpt_step) {
        log_info("--ckpt-step %" PRId64 " is done: this run has committed step %" PRId64
                 " and goes on",
                 options->ckpt_step, committed);
        origin.exact = false;
    }
    if (origin.from_scratch) {
        origin.directory = "";
    }
    return origin;
}

/* Rank 0: what this run has committed may be damaged or set aside by now, and then an older step
 * serves; but it does not vanish: without a trace of it this is not the directory it was. */
static enum status check_trace(const struct train_ckpt *ckpt, const struct origin *origin,
                               uint64_t step)
{
    enum status st = STATUS_OK;
    int64_t committed = ckpt->own_step;
    struct catalog catalog = {0};
    bool is_known = false;

    TRY(st, catalog_scan(ckpt->fs, origin->directory, &catalog), done);
    is_known = catalog.count > 0 && catalog.entries[catalog.count - 1].step >= (uint64_t)committed;
    if (!is_known) {
        TRY(st, catalog_has_rejected(ckpt->fs, origin->directory, (uint64_t)committed, &is_known),
            done);
    }
    if (!is_known) {
        st = FAIL(STATUS_NO_CHECKPOINT,
                  "this run has committed step %" PRId64 ", but the newest usable checkpoint in "
                  "'%s' is of step %" PRIu64 ": bring the directory back, or give another "
                  "--run-dir to start a new run",
                  committed, origin->directory, step);
        goto done;
    }
    log_warn("this run had committed step %" PRId64 ", which cannot be used any more: it goes on "
             "from step %" PRIu64,
             committed, step);
done:
    catalog_deinit(&catalog);
    return st;
}

static bool is_same_directory(struct fs *fs, const char *a, const char *b)
{
    struct fs_stat stat_a, stat_b;

    return strcmp(a, b) == 0 ||
           (fs_stat(fs, a, &stat_a) == STATUS_OK && fs_stat(fs, b, &stat_b) == STATUS_OK &&
            stat_a.device == stat_b.device && stat_a.inode == stat_b.inode);
}

/* Rank 0: no checkpoint is fine where the first one will be saved. */
static enum status check_start(const struct train_ckpt *ckpt, const struct origin *origin)
{
    const struct train_options *options = ckpt->options;
    int64_t committed = ckpt->own_step;

    if (committed >= 0) {
        return FAIL(STATUS_NO_CHECKPOINT,
                    "this run has committed step %" PRId64 ", but '%s' holds no checkpoint: bring "
                    "the directory back, or give another --run-dir to start a new run",
                    committed, origin->directory);
    }
    if (origin->directory[0] == 0) {
        return STATUS_OK;
    }
    if (options->exit_on_missing_checkpoint) {
        return FAIL(STATUS_NO_CHECKPOINT,
                    "no checkpoint in '%s' and --exit-on-missing-checkpoint is given",
                    origin->directory);
    }
    if (!is_same_directory(ckpt->fs, origin->directory, options->save)) {
        return FAIL(STATUS_NO_CHECKPOINT,
                    "no checkpoint in '%s', and --save '%s' is another directory: give another "
                    "--load, or leave it out to begin at step 0",
                    origin->directory, options->save);
    }
    log_info("no checkpoint in '%s': starting at step 0", origin->directory);
    return STATUS_OK;
}

static enum status check_found(struct train_ckpt *ckpt, const struct origin *origin,
                               const struct ckpt_choice *choice)
{
    enum status verdict = STATUS_OK;

    if (ckpt->group.rank == 0 && !choice->found) {
        verdict = check_start(ckpt, origin);
    } else if (ckpt->group.rank == 0 && (int64_t)choice->manifest.step < ckpt->own_step) {
        verdict = check_trace(ckpt, origin, choice->manifest.step);
    }
    return share_verdict(ckpt, verdict);
}

static enum status load_tensors(struct train_ckpt *ckpt, struct train_state *state,
                                const struct ckpt_choice *choice, bool only_params)
{
    enum status st = STATUS_OK, verdict = STATUS_OK;
    struct catalog_pin *pinned = NULL;

    if (ckpt->group.rank == 0) {
        verdict = catalog_pin_checkpoint(ckpt->fs, choice->path, choice->manifest.step, &pinned);
    }
    TRY(st, share_verdict(ckpt, verdict), done);
    TRY(st,
        ckpt_load(ckpt->fs, choice, state->tensors, only_params ? state->param_count : state->count,
                  ckpt->thread_count, &ckpt->group),
        done);
done:
    catalog_pin_destroy(&pinned);
    return st;
}

/* The weights only: another training may have made them, so only the model must be the same. */
static enum status load_to_finetune(struct train_ckpt *ckpt, struct train_state *state,
                                    const struct ckpt_choice *choice)
{
    enum status st = STATUS_OK;
    cJSON *model = cJSON_Duplicate(choice->manifest.options, true);

    if (model == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for the options of '%s'", choice->path);
    }
    for (size_t i = 0; i < train_options_table.option_count; i++) {
        const struct option *option = &train_options_table.options[i];
        if (strcmp(option->group, "model") != 0) {
            cJSON_DeleteItemFromObjectCaseSensitive(model, option->name);
        }
    }
    TRY(st, options_check_resume(&train_options_table, ckpt->options, model, choice->path), done);
    TRY(st, load_tensors(ckpt, state, choice, true), done);
    log_info("finetuning: the weights are those of '%s', the training begins at step 0",
             choice->path);
done:
    cJSON_Delete(model);
    return st;
}

/* The order of the samples may depend on what otherwise may change at a resume. */
static enum status check_order(const struct train_ckpt *ckpt, const struct ckpt_choice *choice)
{
    const struct manifest *manifest = &choice->manifest;
    char now[64], then[64];
    int dp = ckpt->plan->layout.dp;

    if (manifest->step == 0 || strcmp(ckpt->options->dataloader_type, "cyclic") != 0) {
        return STATUS_OK;
    }
    if (manifest->layout.dp != dp) {
        return FAIL(STATUS_OPTIONS_DIFFER,
                    "--dataloader-type cyclic would give samples of '%s' twice: DP is %d here and "
                    "%d there",
                    choice->path, dp, manifest->layout.dp);
    }
    if (options_differs(&train_options_table, manifest->options, "micro-batch-size", ckpt->options,
                        now, then, sizeof(now))) {
        return FAIL(STATUS_OPTIONS_DIFFER,
                    "--dataloader-type cyclic would give samples of '%s' twice: "
                    "--micro-batch-size is %s here and %s there",
                    choice->path, now, then);
    }
    return STATUS_OK;
}

/* What --finetune and --no-load-optim ask for is done once the run has committed a step: an agent
 * starts it again with the same flags. */
static enum status load(struct train_ckpt *ckpt, struct train_state *state,
                        const struct ckpt_choice *choice, bool *out_done)
{
    enum status st = STATUS_OK;
    const struct manifest *manifest = &choice->manifest;
    uint64_t seed = state->scalars.seed;
    bool is_first = ckpt->own_step < 0;
    bool only_params = is_first && ckpt->options->no_load_optim;
    char from[LAYOUT_NAME_MAX], to[LAYOUT_NAME_MAX];

    if (is_first && ckpt->options->finetune) {
        return load_to_finetune(ckpt, state, choice);
    }
    ckpt->acting = *ckpt->options;
    TRY(st,
        train_schedule_resume(&ckpt->acting, ckpt->group.size, manifest->options, choice->path,
                              &ckpt->schedule),
        done);
    TRY(st,
        options_check_resume(&train_options_table, &ckpt->acting, manifest->options, choice->path),
        done);
    TRY(st, check_order(ckpt, choice), done);
    TRY(st, train_state_from_json(state, manifest->state, manifest->step, choice->path), done);
    if (state->scalars.step != manifest->step || state->scalars.seed != seed) {
        st = FAIL(STATUS_CORRUPT,
                  "'%s' has step %" PRIu64 " and seed %" PRIu64 " in its state, but step %" PRIu64
                  " in its manifest and seed %" PRIu64 " on the command line",
                  choice->path, state->scalars.step, state->scalars.seed, manifest->step, seed);
        goto done;
    }
    if (manifest->step >= ckpt->plan->train_steps) {
        log_info("'%s' is step %" PRIu64 " of %" PRIu64 ": the training is done, nothing is left "
                 "to do",
                 choice->path, manifest->step, ckpt->plan->train_steps);
        *out_done = true;
        goto done;
    }
    TRY(st, load_tensors(ckpt, state, choice, only_params), done);
    if (only_params) {
        state->scalars.optimizer_updates = 0;
        log_info("--no-load-optim: the moments of Adam begin anew");
    }
    ckpt->resumed = true;
    ckpt->resumed_step = manifest->step;
    layout_format(manifest->layout, from);
    layout_format(ckpt->plan->layout, to);
    log_info("resumed from '%s': step %" PRIu64 " of %" PRIu64
             ", %s -> %s, state hash 0x%016" PRIx64,
             choice->path, manifest->step, ckpt->plan->train_steps, from, to, manifest->state_hash);
done:
    return st;
}

/* The newest usable one of at most `step_max`. A run that had its --save changed after its last
 * commit finds nothing there, and then looks where it was told to load from. */
static enum status choose(struct train_ckpt *ckpt, struct origin *origin, uint64_t step_max,
                          struct ckpt_choice *choice)
{
    enum status st = STATUS_OK;
    const char *load = ckpt->options->load;

    TRY(st, ckpt_choose(ckpt->fs, origin->directory, step_max, origin->exact, &ckpt->group, choice),
        done);
    if (!choice->found && load[0] != 0 && strcmp(origin->directory, load) != 0) {
        origin->directory = load;
        TRY(st, ckpt_choose(ckpt->fs, load, step_max, origin->exact, &ckpt->group, choice), done);
    }
done:
    return st;
}

/* Damage inside a file shows only when it is read: then the checkpoint before it is tried, as if
 * the catalog had found the damage. One that was asked for by name or step is not replaced. One
 * that was pruned since it was chosen has a newer one beside it. */
static enum status choose_and_load(struct train_ckpt *ckpt, struct origin *origin,
                                   struct train_state *state, struct ckpt_choice *choice,
                                   bool *out_done)
{
    enum status st = STATUS_OK;
    const struct train_scalars fresh = state->scalars;
    uint64_t step_max = origin->exact ? origin->step : UINT64_MAX;
    char damage[STATUS_MESSAGE_MAX] = ""; /* of the newest */
    int pruned = 0;

    if (origin->directory[0] == 0) {
        return check_found(ckpt, origin, choice);
    }
    for (;;) {
        st = choose(ckpt, origin, step_max, choice);
        if (damage[0] != 0 && (st == STATUS_NO_CHECKPOINT || (st == STATUS_OK && !choice->found))) {
            return FAIL(STATUS_NO_CHECKPOINT,
                        "no usable checkpoint in '%.300s' (give another --load, or --from-scratch "
                        "to begin at step 0); the newest: %.500s",
                        origin->directory, damage);
        }
        TRY(st, st, done);
        TRY(st, check_found(ckpt, origin, choice), done);
        if (!choice->found) {
            return STATUS_OK;
        }
        st = load(ckpt, state, choice, out_done);
        if (st == STATUS_NOT_FOUND && pruned < PRUNED_MAX) {
            pruned++;
            state->scalars = fresh;
            ckpt_choice_deinit(choice);
            continue;
        }
        bool is_replaceable = !origin->exact && strcmp(choice->path, origin->directory) != 0 &&
                              choice->manifest.step > 0;
        if (st != STATUS_CORRUPT || !is_replaceable) {
            return st;
        }
        if (ckpt->group.rank == 0) {
            log_warn("passing over checkpoint '%s': %s", choice->path, status_last()->message);
        }
        if (damage[0] == 0) {
            snprintf(damage, sizeof(damage), "%s", status_last()->message);
        }
        step_max = choice->manifest.step - 1;
        state->scalars = fresh;
        ckpt_choice_deinit(choice);
    }
done:
    return st;
}

/* --- the directory to save to ------------------------------------------------------------- */

/* What --save holds, as far as it tells whether somebody has written there meanwhile. */
struct save_mark {
    uint64_t count, newest_step, newest_epoch;
};

/* Rank 0. */
static enum status look_at_save(const struct train_ckpt *ckpt, struct save_mark *out_mark)
{
    enum status st = STATUS_OK;
    struct catalog catalog = {0};

    *out_mark = (struct save_mark){0};
    TRY(st, catalog_scan(ckpt->fs, ckpt->options->save, &catalog), done);
    if (catalog.count > 0) {
        const struct catalog_entry *newest = &catalog.entries[catalog.count - 1];
        *out_mark = (struct save_mark){catalog.count, newest->step, newest->manifest.epoch};
    }
done:
    catalog_deinit(&catalog);
    return st;
}

/* Rank 0: another training's checkpoints in --save are nobody's to write among. */
static enum status check_save_directory(const struct train_ckpt *ckpt, const struct origin *origin,
                                        const struct save_mark *mark, bool goes_on)
{
    if (mark->count > 0 && !goes_on && !origin->from_scratch) {
        return FAIL(STATUS_USAGE,
                    "'%s' holds checkpoints up to step %" PRIu64 " that this run does not go on "
                    "from: give it as --load, or another --save, or --from-scratch to set them "
                    "aside",
                    ckpt->options->save, mark->newest_step);
    }
    return STATUS_OK;
}

/* Rank 0: catalog_reject_after keeps the step it is given, so step 0 (an import) goes by itself. */
static enum status reject_step_zero(const struct train_ckpt *ckpt, uint64_t epoch)
{
    enum status st = STATUS_OK;
    char step_name[LAYOUT_NAME_MAX], name[FS_NAME_MAX];
    char from[FS_PATH_MAX], to[FS_PATH_MAX];

    layout_step_name(0, step_name);
    snprintf(name, sizeof(name), "rejected-%s-%" PRIu64, step_name, epoch);
    TRY(st, fs_join(from, ckpt->options->save, step_name), done);
    TRY(st, fs_join(to, ckpt->options->save, name), done);
    if (fs_exists(ckpt->fs, from)) {
        TRY(st, fs_rename(ckpt->fs, from, to), done);
        TRY(st, fs_sync_dir(ckpt->fs, ckpt->options->save), done);
    }
done:
    return st;
}

/* Rank 0: room for one checkpoint, and one lineage. */
static enum status prepare_save_directory(const struct train_ckpt *ckpt,
                                          const struct origin *origin, uint64_t bytes)
{
    enum status st = STATUS_OK;
    const char *save = ckpt->options->save;
    uint64_t epoch = ckpt_writer_epoch(ckpt->writer);
    struct fs_space space = {0};

    TRY(st, fs_get_space(ckpt->fs, save, &space), done);
    if (space.available_bytes < bytes) {
        st = FAIL(STATUS_NO_SPACE,
                  "'%s' has %" PRIu64 " bytes free, but one checkpoint takes %" PRIu64
                  ": make room, or give another --save",
                  save, space.available_bytes, bytes);
        goto done;
    }
    TRY(st, catalog_reject_after(ckpt->fs, save, ckpt->resumed ? ckpt->resumed_step : 0, epoch),
        done);
    if (origin->from_scratch) {
        TRY(st, reject_step_zero(ckpt, epoch), done);
    }
done:
    return st;
}

static enum status open_writer(struct train_ckpt *ckpt)
{
    enum status st = STATUS_OK, verdict = STATUS_OK;
    const struct train_options *options = ckpt->options;
    char run_id[LEASE_RUN_ID_MAX] = "";
    struct ckpt_writer_config config = {.fs = ckpt->fs,
                                        .save = options->save,
                                        .run_id = ckpt->env->run_id,
                                        .layout = ckpt->plan->layout,
                                        .coords = ckpt->topology->coords,
                                        .group = ckpt->group,
                                        .compression = options->ckpt_compression,
                                        .thread_count = ckpt->thread_count,
                                        .keep_last = (uint64_t)options->keep_last,
                                        .keep_every = (uint64_t)options->keep_every};

    if (ckpt->env->run_id[0] == 0) {
        if (ckpt->group.rank == 0) {
            verdict = lease_make_run_id(run_id);
        }
        TRY(st, share_verdict(ckpt, verdict), done);
        TRY(st, comm_broadcast(ckpt->topology->world, run_id, sizeof(run_id), 0), done);
        config.run_id = run_id;
    }
    TRY(st, ckpt_writer_open(&config, &ckpt->writer), done);
done:
    return st;
}

/* One look at where to begin: the state is loaded, and --save may be written to from there. */
static enum status find_beginning(struct train_ckpt *ckpt, struct train_state *state,
                                  const struct save_mark *mark, struct origin *out_origin,
                                  bool *out_done)
{
    enum status st = STATUS_OK, verdict = STATUS_OK;
    struct ckpt_choice choice = {0};
    bool goes_on = false; /* in --save, from a checkpoint there */

    ckpt->resumed = false;
    TRY(st, agree_on_own_step(ckpt), done);
    *out_origin = find_origin(ckpt);
    TRY(st, choose_and_load(ckpt, out_origin, state, &choice, out_done), done);
    if (choice.found) {
        char parent[FS_PATH_MAX];
        fs_parent(parent, choice.path);
        goes_on = is_same_directory(ckpt->fs, parent, ckpt->options->save);
        ckpt->committed_step = goes_on ? (int64_t)choice.manifest.step : -1;
    }
    if (!*out_done && ckpt->options->save[0] != 0) {
        if (ckpt->group.rank == 0) {
            verdict = check_save_directory(ckpt, out_origin, mark, goes_on);
        }
        TRY(st, share_verdict(ckpt, verdict), done);
    }
done:
    ckpt_choice_deinit(&choice);
    return st;
}

/* Whether --save is another than at `mark`, which it becomes. */
static enum status find_change(struct train_ckpt *ckpt, struct save_mark *mark, bool *out_changed)
{
    enum status st = STATUS_OK, verdict = STATUS_OK;
    struct save_mark now = {0};
    uint8_t is_changed = 0;

    if (ckpt->group.rank == 0) {
        verdict = look_at_save(ckpt, &now);
        is_changed = memcmp(&now, mark, sizeof(now)) != 0;
        *mark = now;
    }
    TRY(st, share_verdict(ckpt, verdict), done);
    TRY(st, comm_broadcast(ckpt->topology->world, &is_changed, sizeof(is_changed), 0), done);
    *out_changed = is_changed != 0;
done:
    return st;
}

/* The owner of --save may have gone on saving until the lease came to this run: then the beginning
 * is looked for again, with nobody writing any more. */
enum status train_ckpt_begin(struct train_ckpt *ckpt, struct train_state *state, bool *out_done)
{
    enum status st = STATUS_OK, verdict = STATUS_OK;
    const struct train_scalars fresh = state->scalars;
    uint64_t bytes = ckpt_estimate_bytes(state->tensors, state->count);
    struct origin origin = {.directory = ""};
    struct save_mark mark = {0};
    bool saves = ckpt->options->save[0] != 0, is_changed = false;

    *out_done = false;
    if (saves) {
        TRY(st, find_change(ckpt, &mark, &is_changed), done);
    }
    TRY(st, find_beginning(ckpt, state, &mark, &origin, out_done), done);
    if (*out_done || !saves) {
        goto done;
    }
    TRY(st, open_writer(ckpt), done);
    TRY(st, find_change(ckpt, &mark, &is_changed), done);
    if (is_changed) {
        bool was_resumed = ckpt->resumed;
        log_info("'%s' was written to until this run could have it: looking again",
                 ckpt->options->save);
        state->scalars = fresh;
        TRY(st, find_beginning(ckpt, state, &mark, &origin, out_done), done);
        if (was_resumed && !ckpt->resumed && !*out_done) {
            st = FAIL(STATUS_NO_CHECKPOINT,
                      "the checkpoints in '%s' have gone while this run "
                      "started",
                      ckpt->options->save);
            goto done;
        }
    }
    TRY(st, comm_all_reduce(ckpt->topology->world, &bytes, 1, COMM_U64, COMM_SUM), done);
    if (ckpt->group.rank == 0 && !*out_done) {
        verdict = prepare_save_directory(ckpt, &origin, bytes);
    }
    TRY(st, share_verdict(ckpt, verdict), done);
done:
    return st;
}

/* --- saves -------------------------------------------------------------------------------- */

bool train_ckpt_is_fatal(enum status status)
{
    return status == STATUS_NUMERIC || status == STATUS_NOT_OWNER || status == STATUS_PEER_LOST ||
           status == STATUS_ABORTED || status == STATUS_TIMEOUT;
}

enum status train_ckpt_save(struct train_ckpt *ckpt, const struct train_state *state)
{
    enum status st = STATUS_OK;
    uint64_t step = state->scalars.step;
    cJSON *options = NULL, *scalars = NULL;
    struct ckpt_save_result result = {0};

    TRY(st, train_state_check_replicas(state), done);
    TRY(st, options_to_json(&train_options_table, &ckpt->acting, &options), done);
    TRY(st, train_state_to_json(state, &scalars), done);
    struct ckpt_save save = {.step = step,
                             .parent_step = ckpt->resumed ? ckpt->resumed_step : step,
                             .tensors = state->tensors,
                             .tensor_count = state->count,
                             .options = options,
                             .state = scalars};
    TRY(st, ckpt_save(ckpt->writer, &save, &result), done);
    ckpt->committed_step = (int64_t)step;
    log_info("saved step %" PRIu64 " in '%s': %" PRIu64 " bytes, write %.3f s, commit %.3f s, "
             "state hash 0x%016" PRIx64,
             step, ckpt->options->save, result.bytes, result.write_s, result.commit_s,
             result.state_hash);
done:
    cJSON_Delete(options);
    cJSON_Delete(scalars);
    return st;
}
