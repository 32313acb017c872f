/* holdfast-ckpt: looks at checkpoints, proves them whole, compares them; imports and exports
 * models.
 *
 * Parses, runs one command, maps its status to the exit code. The work is in ckpt.h, convert.h,
 * diff.h and meta/catalog.h. */
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
#include "ckpt/diff.h"

#define PROGRAM "holdfast ckpt"

struct ckpt_options {
    int64_t step; /* -1: list, verify: all; else the newest */
    int64_t threads;
    char level[OPTIONS_TEXT_MAX];
    char save[OPTIONS_TEXT_MAX];
    char to[OPTIONS_TEXT_MAX];
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

static const struct option export_options[] = {
    ROW("to", TEXT, to, NULL, 0, 0, NULL, "folder to make"),
    STEP_ROW,
    THREADS_ROW,
};
static const struct option diff_options[] = {STEP_ROW, THREADS_ROW, JSON_ROW};

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

static void print_shape(const struct manifest_tensor *tensor)
{
    printf("%-5s [", manifest_type_name(tensor->type));
    for (int d = 0; d < tensor->dims; d++) {
        printf("%s%" PRIu64, d > 0 ? ", " : "", tensor->shape[d]);
    }
    printf("]");
}

static void show_tensors(const struct manifest *manifest)
{
    for (size_t i = 0; i < manifest->tensor_count; i++) {
        printf("  %-70s ", manifest->tensors[i].name);
        print_shape(&manifest->tensors[i]);
        printf("\n");
    }
}

static enum status setting_to_text(const cJSON *value, char **out_text)
{
    return value == NULL ? mem_copy_string(out_text, "(none)") : json_print_line(value, out_text);
}

static enum status show_settings(const struct manifest *manifest)
{
    enum status st = STATUS_OK;
    const cJSON *option = NULL;

    cJSON_ArrayForEach(option, manifest->options)
    {
        const char *class = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(option, "class"));
        char *text = NULL;
        TRY(st, setting_to_text(cJSON_GetObjectItemCaseSensitive(option, "value"), &text), done);
        printf("  --%-44s %-8s %s\n", option->string, class == NULL ? "" : class, text);
        mem_free(&text);
    }
done:
    return st;
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
    TRY(st, show_settings(&entry->manifest), done);
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

/* A checkpoint to read: its catalog, and a pin that keeps it from being pruned meanwhile. */
struct picked {
    struct catalog catalog;
    const struct catalog_entry *entry;
    struct catalog_pin *pin;
};

static enum status open_picked(const char *path, int64_t step, struct picked *out_picked)
{
    enum status st = STATUS_OK;

    *out_picked = (struct picked){.entry = NULL};
    TRY(st, open_catalog(path, &out_picked->catalog), done);
    out_picked->entry = pick(&out_picked->catalog, step);
    if (out_picked->entry == NULL) {
        st = FAIL(STATUS_NO_CHECKPOINT, "'%s' holds no usable checkpoint%s", path,
                  step < 0 ? "" : " of that step");
        goto done;
    }
    TRY(st,
        catalog_pin_checkpoint(fs_posix(), out_picked->entry->path, out_picked->entry->step,
                               &out_picked->pin),
        done);
done:
    return st;
}

static void close_picked(struct picked *picked)
{
    catalog_pin_destroy(&picked->pin);
    catalog_deinit(&picked->catalog);
}

static enum status run_export(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct ckpt_options *options = values;
    struct convert_result result = {0};
    struct picked picked;

    TRY(st, open_picked(words->arguments[0], options->step, &picked), done);
    TRY(st,
        convert_export_gpt2(fs_posix(), picked.entry->path, &picked.entry->manifest, options->to,
                            thread_count(options), &result),
        done);
    printf("exported %" PRIu64 " parameters of '%s' to '%s'\n", result.parameters,
           picked.entry->path, options->to);
done:
    close_picked(&picked);
    return st;
}

static void say_values(const struct diff_finding *finding)
{
    const struct diff_values *values = &finding->values;
    const struct manifest_tensor *tensor = finding->tensor[0];
    uint64_t index[BOX_DIMS_MAX] = {0}, rest = values->first;

    for (int d = tensor->dims - 1; d >= 0; d--) {
        index[d] = rest % tensor->shape[d];
        rest /= tensor->shape[d];
    }
    printf("tensor  %-70s %" PRIu64 " of %" PRIu64 " differ, at most by %.6g, relative %.6g, "
           "first at [",
           finding->name, values->differing, values->elements, values->max_abs,
           values->max_relative);
    for (int d = 0; d < tensor->dims; d++) {
        printf("%s%" PRIu64, d > 0 ? ", " : "", index[d]);
    }
    printf("]\n");
}

static enum status say_finding(const struct diff_finding *finding)
{
    enum status st = STATUS_OK;
    char *texts[2] = {NULL, NULL};

    if (finding->kind == DIFF_VALUES) {
        say_values(finding);
    } else if (finding->kind == DIFF_SHAPE) {
        printf("tensor  %-70s ", finding->name);
        for (int side = 0; side < 2; side++) {
            printf("%s", side > 0 ? " | " : "");
            if (finding->tensor[side] == NULL) {
                printf("(none)");
            } else {
                print_shape(finding->tensor[side]);
            }
        }
        printf("\n");
    } else {
        TRY(st, setting_to_text(finding->value[0], &texts[0]), done);
        TRY(st, setting_to_text(finding->value[1], &texts[1]), done);
        printf("setting %-70s %s | %s\n", finding->name, texts[0], texts[1]);
    }
done:
    mem_free(&texts[0]);
    mem_free(&texts[1]);
    return st;
}

static enum status shape_to_json(const struct manifest_tensor *tensor, cJSON **out_value)
{
    enum status st = STATUS_OK;

    TRY(st, json_new_array(out_value), done);
    TRY(st, json_append(*out_value, cJSON_CreateString(manifest_type_name(tensor->type))), done);
    for (int d = 0; d < tensor->dims; d++) {
        TRY(st, json_append(*out_value, cJSON_CreateNumber((double)tensor->shape[d])), done);
    }
done:
    return st;
}

/* "a" and "b": a setting's value, or a tensor's type and shape; null where that side has none. */
static enum status add_sides(const struct diff_finding *finding, cJSON *object)
{
    enum status st = STATUS_OK;
    const char *const names[] = {"a", "b"};

    for (int side = 0; side < 2; side++) {
        cJSON *value = NULL;

        if (finding->value[side] != NULL) {
            value = cJSON_Duplicate(finding->value[side], true);
        } else if (finding->tensor[side] != NULL) {
            st = shape_to_json(finding->tensor[side], &value);
        } else {
            value = cJSON_CreateNull();
        }
        if (st != STATUS_OK) {
            cJSON_Delete(value);
            return st;
        }
        TRY(st, json_add_item(object, names[side], value), done);
    }
done:
    return st;
}

static enum status finding_to_json(const struct diff_finding *finding)
{
    static const char *const kinds[] = {"setting", "shape", "values"};
    const struct diff_values *values = &finding->values;
    enum status st = STATUS_OK;
    cJSON *object = NULL;

    TRY(st, json_new_object(&object), done);
    TRY(st, json_add_string(object, "type", kinds[finding->kind]), done);
    TRY(st, json_add_string(object, "name", finding->name), done);
    if (finding->kind != DIFF_VALUES) {
        TRY(st, add_sides(finding, object), done);
    } else {
        TRY(st, json_add_u64(object, "elements", values->elements), done);
        TRY(st, json_add_u64(object, "differing", values->differing), done);
        TRY(st, json_add_u64(object, "first", values->first), done);
        /* JSON has no infinity: null. */
        TRY(st, json_add_item(object, "max_abs", cJSON_CreateNumber(values->max_abs)), done);
        TRY(st, json_add_item(object, "max_relative", cJSON_CreateNumber(values->max_relative)),
            done);
    }
    TRY(st, print_json(object), done);
done:
    cJSON_Delete(object);
    return st;
}

static enum status report_finding(void *context, const struct diff_finding *finding)
{
    const struct ckpt_options *options = context;

    return options->json ? finding_to_json(finding) : say_finding(finding);
}

/* As of diff(1), 1 says that they differ: what failed has 2, or its own exit code above. */
static enum status as_trouble(enum status st)
{
    struct status_record record;

    if (st == STATUS_OK || status_exit_code(st) != 1) {
        return st;
    }
    status_take(&record);
    record.code = STATUS_USAGE;
    return status_give(&record);
}

static enum status run_diff(const void *values, const struct command_words *words)
{
    enum status st = STATUS_OK;
    const struct ckpt_options *options = values;
    struct picked picked[2] = {{.entry = NULL}, {.entry = NULL}};
    struct diff_side sides[2];
    struct diff_totals totals = {0};

    for (int side = 0; side < 2; side++) {
        TRY(st, open_picked(words->arguments[side], options->step, &picked[side]), done);
        sides[side] = (struct diff_side){picked[side].entry->path, &picked[side].entry->manifest};
    }
    TRY(st,
        diff_run(fs_posix(), sides, thread_count(options), report_finding, (void *)options,
                 &totals),
        done);
done:
    st = as_trouble(st);
    if (st == STATUS_OK && totals.settings + totals.tensors > 0) {
        st = FAIL(STATUS_FAILED,
                  "'%s' and '%s' differ in %" PRIu64 " settings and %" PRIu64 " tensors",
                  sides[0].path, sides[1].path, totals.settings, totals.tensors);
    } else if (st == STATUS_OK && !options->json) {
        printf("'%s' and '%s' are equal: %" PRIu64 " tensors, bit for bit\n", sides[0].path,
               sides[1].path, totals.tensors_compared);
    }
    close_picked(&picked[0]);
    close_picked(&picked[1]);
    return st;
}

#define COMMAND(verb, count, arguments, text)                                                      \
    {                                                                                              \
        .name = #verb,                                                                             \
        .table = {.program = PROGRAM " " #verb,                                                    \
                  .usage = arguments " [options]",                                                 \
                  .about = text,                                                                   \
                  .options = verb##_options,                                                       \
                  .option_count = sizeof verb##_options / sizeof(struct option),                   \
                  .given_offset = AT(given),                                                       \
                  .positional_min = count,                                                         \
                  .positional_max = count},                                                        \
        .run = run_##verb                                                                          \
    }

static const struct command commands[] = {
    COMMAND(list, 1, "SAVE", "Lists the checkpoints of a SAVE directory, oldest first."),
    COMMAND(show, 1, "SAVE|CHECKPOINT", "Shows what a checkpoint holds: the newest, or --step."),
    COMMAND(verify, 1, "SAVE|CHECKPOINT", "Proves checkpoints whole, all of them or --step."),
    COMMAND(import, 1, "FOLDER --save SAVE",
            "Imports a GPT-2 of transformers (config.json, model.safetensors) as step 0."),
    COMMAND(export, 1, "SAVE|CHECKPOINT --to FOLDER",
            "Makes a GPT-2 of transformers (config.json, model.safetensors) of a checkpoint: the "
            "newest, or --step."),
    COMMAND(diff, 2, "A B",
            "Compares two checkpoints (of SAVE directories the newest, or --step), whatever their "
            "layouts: settings, and tensors bit by bit. Exit code 0: equal, 1: they differ, 2 and "
            "above: trouble."),
};

int main(int argc, char **argv)
{
    struct ckpt_options options;

    log_init(LOG_LEVEL_INFO, "ckpt");
    return command_main(PROGRAM, commands, sizeof commands / sizeof *commands, &options, argc,
                        argv);
}
