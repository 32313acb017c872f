/* The environment that the agent (or torchrun) gives a rank; see run_env.h. Before it: the agent's
 * launcher; after it: topology and rendezvous of train.
 */
#include "ckpt/meta/run_env.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/meta/layout.h"

/* A variable that is not there, or empty, leaves *value as it is. */
static enum status read_number(const char *name, int64_t min, int64_t max, int64_t *value)
{
    const char *text = getenv(name);
    char *end;

    if (text == NULL || text[0] == '\0') {
        return STATUS_OK;
    }
    errno = 0;
    long long number = strtoll(text, &end, 10);
    bool is_number = text[0] == '-' || (text[0] >= '0' && text[0] <= '9');

    if (!is_number || errno != 0 || *end != '\0' || number < min || number > max) {
        return FAIL(STATUS_USAGE,
                    "environment variable %s='%.64s' is no number from %" PRId64 " to %" PRId64,
                    name, text, min, max);
    }
    *value = number;
    return STATUS_OK;
}

static enum status read_text(const char *name, char *out_text, size_t bytes)
{
    const char *text = getenv(name);

    out_text[0] = '\0';
    if (text == NULL) {
        return STATUS_OK;
    }
    if (strlen(text) >= bytes) {
        return FAIL(STATUS_USAGE, "environment variable %s is longer than %zu bytes", name,
                    bytes - 1);
    }
    memcpy(out_text, text, strlen(text) + 1);
    return STATUS_OK;
}

static enum status check_rank(const char *rank_name, int64_t rank, const char *size_name,
                              int64_t size)
{
    if (rank >= size) {
        return FAIL(STATUS_USAGE, "environment variable %s=%" PRId64 " is not below %s=%" PRId64,
                    rank_name, rank, size_name, size);
    }
    return STATUS_OK;
}

enum status run_env_read(struct run_env *out_env)
{
    enum status st = STATUS_OK;
    struct run_env env = {0};
    int64_t rank = 0, size = 1, local_rank = 0, local_size = 1, generation = 0, committed = -1;
    const int64_t max = LAYOUT_RANKS_MAX;

    TRY(st, read_number(RUN_ENV_RANK, 0, max - 1, &rank), done);
    TRY(st, read_number(RUN_ENV_WORLD_SIZE, 1, max, &size), done);
    TRY(st, read_number(RUN_ENV_LOCAL_RANK, 0, max - 1, &local_rank), done);
    TRY(st, read_number(RUN_ENV_LOCAL_WORLD_SIZE, 1, max, &local_size), done);
    TRY(st, read_number(RUN_ENV_GENERATION, 0, INT64_MAX, &generation), done);
    TRY(st, read_number(RUN_ENV_COMMITTED_STEP, -1, INT64_MAX, &committed), done);
    TRY(st, check_rank(RUN_ENV_RANK, rank, RUN_ENV_WORLD_SIZE, size), done);
    TRY(st, check_rank(RUN_ENV_LOCAL_RANK, local_rank, RUN_ENV_LOCAL_WORLD_SIZE, local_size), done);
    TRY(st, read_text(RUN_ENV_RUN_DIR, env.run_dir, sizeof env.run_dir), done);
    TRY(st, read_text(RUN_ENV_RUN_ID, env.run_id, sizeof env.run_id), done);
    env.rank = (int)rank;
    env.world_size = (int)size;
    env.local_rank = (int)local_rank;
    env.local_world_size = (int)local_size;
    env.has_agent = env.run_dir[0] != '\0';
    env.generation = (uint64_t)generation;
    env.committed_step = committed;
    *out_env = env;
done:
    return st;
}
