/* Lines for people and for scripts; see say.h. */
#include "backup/say.h"

#include <stdio.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/json.h"
#include "ckpt/base/mem.h"

static enum status fill(cJSON *object, const char *type, uint64_t step,
                        const struct manifest *manifest, const char *remark)
{
    enum status st = STATUS_OK;

    TRY(st, json_add_string(object, "type", type), done);
    TRY(st, json_add_u64(object, "step", step), done);
    if (manifest != NULL) {
        TRY(st, json_add_u64(object, "bytes", manifest_total_bytes(manifest)), done);
        TRY(st, json_add_u64(object, "files", manifest->file_count), done);
        TRY(st, json_add_string(object, "run_id", manifest->run_id), done);
        TRY(st, json_add_hex64(object, "state_hash", manifest->state_hash), done);
    }
    if (remark[0] != '\0') {
        TRY(st, json_add_string(object, "remark", remark), done);
    }
done:
    return st;
}

static void say_json(const char *type, uint64_t step, const struct manifest *manifest,
                     const char *remark)
{
    cJSON *object = NULL;
    char *line = NULL;

    if (json_new_object(&object) == STATUS_OK &&
        fill(object, type, step, manifest, remark) == STATUS_OK &&
        json_print_line(object, &line) == STATUS_OK) {
        printf("%s\n", line);
    }
    mem_free(&line);
    cJSON_Delete(object);
}

void say_step(bool json, const char *type, uint64_t step, const struct manifest *manifest,
              const char *remark)
{
    char name[LAYOUT_NAME_MAX], layout[LAYOUT_NAME_MAX], when[CLOCK_TEXT_MAX];

    if (json) {
        say_json(type, step, manifest, remark);
        return;
    }
    if (strcmp(type, "pushed") == 0 || strcmp(type, "pulled") == 0) {
        return;
    }
    layout_step_name(step, name);
    if (manifest == NULL) {
        printf("%-14s %-10s %s\n", name, type, remark);
        return;
    }
    layout_format(manifest->layout, layout);
    clock_format_utc(manifest->created_wall_ns, when);
    printf("%-14s %-10s %10.1f MB  %3zu files  %s  %s  run %.8s  %s\n", name, type,
           (double)manifest_total_bytes(manifest) * 1e-6, manifest->file_count, layout, when,
           manifest->run_id, remark);
}
