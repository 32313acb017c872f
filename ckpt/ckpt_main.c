/* holdfast-ckpt: looks at checkpoints, proves them whole, imports models.
 *
 * Parses, runs one command, maps its status to the exit code. The work is in ckpt.h, convert.h and
 * meta/catalog.h. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/command.h"
#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "ckpt/ckpt.h"
#include "ckpt/convert.h"

#define PROGRAM "holdfast ckpt"

struct ckpt_options {
    int64_t step; /* -1: list, verify: all; show: the newest */
    int64_t threads;
    char level[OPTIONS_TEXT_MAX];
    char save[OPTIONS_TEXT_MAX];
    bool json;
    bool given[5];
};

#define AT(field) offsetof(struct ckpt_options, field)
#define ROW(name, type, field, given, min, max, choices, help)                                     \
    {                                                                                              \
        name, OPTION_##type, AT(field), given, min, max, choices, OPTION_LOCAL, "Options", true,   \
            help                                                                                   \
    }
#define STEP_ROW ROW("step", INT, step, "-1", -1, 9007199254740992.0, NULL, "only this step")
#define JSON_ROW ROW("json", BOOL, json, "false", 0, 0, NULL, "print JSON lines")
#define THREADS_ROW                                                                                \
    ROW("num-threads", INT, threads, "0", 0, THREAD_COUNT_MAX, NULL,                               \
        "threads; 0 is one a processor")

static const struct option list_options[] = {JSON_ROW};
static const struct option show_options[] = {STEP_ROW, JSON_ROW};
static const struct option verify_options[] = {
    STEP_ROW,
    ROW("level", CHOICE, level, "full", 0, 0, "quick|full|deep",
        "quick: manifest and sizes; full: every byte; deep: also the state hash"),
    THREADS_ROW,
    JSON_ROW,
};
static const struct option import_options[] = {
    ROW("save", TEXT, save, NULL, 0, 0, NULL, "directory to write the checkpoint of step 0 into"),
    THREADS_ROW,
};

static int thread_count(const struct ckpt_options *options)
{
    return options->threads > 0 ? (int)options->threads : thread_cpu_count();
}

/* One line of JSON with what both kinds of listing need. */
static enum status entry_to_json(const struct catalog_entry *entry, cJSON *object)
{
    enum status st = STATUS_OK;

    TRY(st, json_add_string(object, "type", "checkpoint"), done);
    TRY(st, json_add_u64(object, "step", entry->step), done);
    TRY(st, json_add_string(object, "path", entry->path), done);
    TRY(st, json_add_bool(object, "usable", entry->usable), done);
    if (!entry->usable) {
        TRY(st, json_add_string(object, "reason", entry->reason), done);
        goto done;
    }
    TRY(st, json_add_u64(object, "bytes", manifest_total_bytes(&entry->manifest)), done);
    TRY(st, json_add_u64(object, "tp", (uint64_t)entry->manifest.layout.tp), done);
    TRY(st, json_add_u64(object, "pp", (uint64_t)entry->manifest.layout.pp), done);
    TRY(st, json_add_u64(object, "dp", (uint64_t)entry->manifest.layout.dp), done);
    TRY(st, json_add_string(object, "run_id", entry->manifest.run_id), done);
    TRY(st, json_add_hex64(object, "state_hash", entry->manifest.state_hash), done);
done:
    return st;
}

static enum status print_json(cJSON *object)
{
    enum status st = STATUS_OK;
    char *line = NULL;

    TRY(st, json_print_line(object, &line), done);
    printf("%s\n", line);
done:
    mem_free(&line);
    return st;
}

static enum status list_json(const struct catalog_entry *entry)
{
    enum status st = STATUS_OK;
    cJSON *object = NULL;

    TRY(st, json_new_object(&object), done);
    TRY(st, entry_to_json(entry, object), done);
    TRY(st, print_json(object), done);
done:
    cJSON_Delete(object);
    return st;
}

static void list_line(const struct catalog_entry *entry)
{
    char name[LAYOUT_NAME_MAX], layout[LAYOUT_NAME_MAX], when[CLOCK_TEXT_MAX];

    layout_step_name(entry->step, name);
    if (!entry->usable) {
        printf("%-14s UNUSABLE  %s\n", name, entry->reason);
        return;
    }
    layout_format(entry->manifest.layout, layout);
    clock_format_utc(entry->manifest.created_wall_ns, when);
    printf("%-14s %10.1f MB  %3zu files  %s  %s  state 0x%016" PRIx64 "\n", name,
           (double)manifest_total_bytes(&entry->manifest) * 1e-6, entry->manifest.file_count,
           layout, when, entry->manifest.state_hash);
}

/* `path` is a SAVE directory or one checkpoint: then the catalog has that one entry. */
static enum status open_catalog(const char *path, struct catalog *out_catalog)
{
    enum status st = STATUS_OK;
    char manifest[FS_PATH_MAX], parent[FS_PATH_MAX];
    struct catalog_entry *single = NULL;

    TRY(st, fs_join(manifest, path, MANIFEST_FILE), done);
    if (!fs_exists(fs_posix(), path)) {
        *out_catalog = (struct catalog){.entries = NULL};
        return FAIL(STATUS_NOT_FOUND, "no folder '%s'", path);
    }
    if (!fs_exists(fs_posix(), manifest)) {
        return catalog_scan(fs_posix(), path, out_catalog);
    }
    *out_catalog = (struct catalog){.entries = NULL};
    fs_parent(parent, path);
    TRY(st, mem_alloc(&single, 1, sizeof *single), done);
    (void)snprintf(out_catalog->path, sizeof out_catalog->path, "%s", parent);
    (void)snprintf(single->path, sizeof single->path, "%s", path);
    out_catalog->entries = single;
    out_catalog->count = 1;
    TRY(st, manifest_read(fs_posix(), path, &single->manifest), done);
    single->step = single->manifest.step;
    single->bytes = manifest_total_bytes(&single->manifest);
    single->fault = manifest_check_files(&single->manifest, fs_posix(), path);
    single->usable = single->fault == STATUS_OK;
    if (!single->usable) {
        (void)snprintf(single->reason, sizeof single->reason, "%.*s", CATALOG_REASON_MAX - 1,
                       status_last()->message);
    }
done:
    return st;
}

static enum status run_list(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct ckpt_options *options = values;
    const char *path = words->arguments[0];
    struct catalog catalog;

    TRY(st, open_catalog(path, &catalog), done);
    for (size_t i = 0; i < catalog.count; i++) {
        if (options->json) {
            TRY(st, list_json(&catalog.entries[i]), done);
        } else {
            list_line(&catalog.entries[i]);
        }
    }
    if (catalog.count == 0 && !options->json) {
        printf("no checkpoints in '%s'\n", path);
    }
done:
    catalog_deinit(&catalog);
    return st;
}

static const struct catalog_entry *pick(const struct catalog *catalog, int64_t step)
{
    const struct catalog_entry *entry =
        catalog_choose(catalog, step < 0 ? UINT64_MAX : (uint64_t)step);

    return entry != NULL && (step < 0 || entry->step == (uint64_t)step) ? entry : NULL;
}

static void show_tensors(const struct manifest *manifest)
{
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        const struct manifest_tensor *tensor = &manifest->tensors[i];
        printf("  %-70s %-5s [", tensor->name, manifest_type_name(tensor->type));
        for (int d = 0; d < tensor->dims; d++) {
            printf("%s%" PRIu64, d > 0 ? ", " : "", tensor->shape[d]);
        }
        printf("]\n");
    }
}

static enum status run_show(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct ckpt_options *options = values;
    const char *path = words->arguments[0];
    struct catalog catalog;
    char *text = NULL;
    size_t bytes = 0;

    TRY(st, open_catalog(path, &catalog), done);
    const struct catalog_entry *entry = pick(&catalog, options->step);
    if (entry == NULL) {
        st = FAIL(STATUS_NO_CHECKPOINT, "'%s' holds no usable checkpoint to show", path);
        goto done;
    }
    if (options->json) {
        TRY(st, manifest_print(&entry->manifest, &text, &bytes), done);
        printf("%s", text);
        goto done;
    }
    list_line(entry);
    printf("  run %s, epoch %" PRIu64 ", from step %" PRIu64 ", compression %s\n",
           entry->manifest.run_id, entry->manifest.epoch, entry->manifest.parent_step,
           entry->manifest.compression);
    TRY(st, json_print_line(entry->manifest.state, &text), done);
    printf("  state %s\n", text);
    show_tensors(&entry->manifest);
done:
    mem_free(&text);
    catalog_deinit(&catalog);
    return st;
}

static enum ckpt_verify_level level_of(const char *text)
{
    return strcmp(text, "quick") == 0  ? CKPT_VERIFY_QUICK
           : strcmp(text, "deep") == 0 ? CKPT_VERIFY_DEEP
                                       : CKPT_VERIFY_FULL;
}

static enum status say_verified(const struct ckpt_options *options,
                                const struct catalog_entry *entry, const char *reason)
{
    enum status st = STATUS_OK;
    char name[LAYOUT_NAME_MAX];
    cJSON *object = NULL;

    layout_step_name(entry->step, name);
    if (!options->json) {
        printf("%-14s %s%s\n", name,
               reason == NULL ? "ok, " : "DAMAGED: ", reason == NULL ? options->level : reason);
        return STATUS_OK;
    }
    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_string(object, "type", "verified"), done);
    TRY(st, json_add_u64(object, "step", entry->step), done);
    TRY(st, json_add_string(object, "level", options->level), done);
    TRY(st, json_add_bool(object, "ok", reason == NULL), done);
    if (reason != NULL) {
        TRY(st, json_add_string(object, "reason", reason), done);
    }
    TRY(st, print_json(object), done);
done:
    cJSON_Delete(object);
    return st;
}

/* One entry, also of those that the catalog found unusable; only damage is counted, and a
 * checkpoint that its run has deleted meanwhile is left out. Everything else ends the command: what
 * cannot be read is not proved damaged. */
static enum status verify_entry(const struct ckpt_options *options,
                                const struct catalog_entry *entry, size_t *checked, size_t *bad)
{
    enum status st =
        ckpt_verify(fs_posix(), entry->path, level_of(options->level), thread_count(options));

    if (st == STATUS_NOT_FOUND) {
        log_warn("%s", status_last()->message);
        return STATUS_OK;
    }
    if (st == STATUS_CORRUPT) {
        char reason[STATUS_MESSAGE_MAX];
        memcpy(reason, status_last()->message, sizeof reason);
        (*checked)++;
        (*bad)++;
        return say_verified(options, entry, reason);
    }
    TRY(st, st, done);
    (*checked)++;
    TRY(st, say_verified(options, entry, NULL), done);
done:
    return st;
}

static enum status run_verify(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct ckpt_options *options = values;
    const char *path = words->arguments[0];
    struct catalog catalog;
    size_t checked = 0, bad = 0;

    TRY(st, open_catalog(path, &catalog), done);
    for (size_t i = 0; i < catalog.count; i++) {
        if (options->step >= 0 && catalog.entries[i].step != (uint64_t)options->step) {
            continue;
        }
        TRY(st, verify_entry(options, &catalog.entries[i], &checked, &bad), done);
    }
    if (bad > 0) {
        st = FAIL(STATUS_CORRUPT, "%zu of %zu checkpoints in '%s' are damaged", bad, checked, path);
    } else if (checked == 0) {
        st = FAIL(STATUS_NO_CHECKPOINT, "'%s' holds no checkpoint to verify", path);
    }
done:
    catalog_deinit(&catalog);
    return st;
}

static enum status run_import(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct ckpt_options *options = values;
    const char *path = words->arguments[0];
    struct convert_result result = {0};

    TRY(st, convert_import_gpt2(fs_posix(), path, options->save, thread_count(options), &result),
        done);
    printf("imported %" PRIu64 " parameters from '%s' as step 0 of '%s', state 0x%016" PRIx64 "\n",
           result.parameters, path, options->save, result.state_hash);
done:
    return st;
}

#define COMMAND(verb, arguments, text)                                                             \
    {                                                                                              \
        .name = #verb,                                                                             \
        .table = {.program = PROGRAM " " #verb,                                                    \
                  .usage = arguments " [options]",                                                 \
                  .about = text,                                                                   \
                  .options = verb##_options,                                                       \
                  .option_count = sizeof verb##_options / sizeof(struct option),                   \
                  .given_offset = AT(given),                                                       \
                  .positional_min = 1,                                                             \
                  .positional_max = 1},                                                            \
        .run = run_##verb                                                                          \
    }

static const struct command commands[] = {
    COMMAND(list, "SAVE", "Lists the checkpoints of a SAVE directory, oldest first."),
    COMMAND(show, "SAVE|CHECKPOINT", "Shows what a checkpoint holds: the newest, or --step."),
    COMMAND(verify, "SAVE|CHECKPOINT", "Proves checkpoints whole, all of them or --step."),
    COMMAND(import, "FOLDER --save SAVE",
            "Imports a GPT-2 of transformers (config.json, model.safetensors) as step 0."),
};

int main(int argc, char **argv)
{
    struct ckpt_options options;

    log_init(LOG_LEVEL_INFO, "ckpt");
    return command_main(PROGRAM, commands, sizeof commands / sizeof *commands, &options, argc,
                        argv);
}
