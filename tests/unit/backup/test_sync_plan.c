/* Claims about what is pushed, refused and pruned (backup/sync_plan). */
#include <criterion/criterion.h>
#include <string.h>

#include "backup/sync_plan.h"

static struct manifest local = {.step = 5, .run_id = "here"};

static struct sync_decision decide(const struct remote_entry *remote)
{
    struct sync_decision decision;

    sync_plan_push(&local, "text", 4, remote, &decision);
    return decision;
}

Test(sync_plan, pushes_what_is_not_there)
{
    cr_assert_eq(decide(NULL).action, SYNC_PUSH);
}

Test(sync_plan, leaves_the_same_complete_checkpoint_alone)
{
    struct remote_entry remote = {
        .step = 5, .complete = true, .manifest_text = (char *)"text", .manifest_bytes = 4};

    cr_assert_eq(decide(&remote).action, SYNC_DONE);
    remote.complete = false; /* its files are damaged: mend them */
    cr_assert_eq(decide(&remote).action, SYNC_PUSH);
}

Test(sync_plan, refuses_another_runs_checkpoint_and_names_both)
{
    struct remote_entry remote = {.step = 5,
                                  .complete = true,
                                  .manifest = {.run_id = "there"},
                                  .manifest_text = (char *)"TEXT",
                                  .manifest_bytes = 4};
    struct sync_decision decision = decide(&remote);

    cr_assert_eq(decision.action, SYNC_REFUSE);
    cr_assert(strstr(decision.reason, "'there'") && strstr(decision.reason, "'here'"), "%s",
              decision.reason);
}

Test(sync_plan, refuses_a_step_that_another_run_is_pushing)
{
    struct remote_entry remote = {.step = 5, .name = "step_0000005", .claim_run_id = "other"};

    cr_assert_eq(decide(&remote).action, SYNC_REFUSE);
    memcpy(remote.claim_run_id, "here", 5); /* our own, of a push that was killed */
    cr_assert_eq(decide(&remote).action, SYNC_PUSH);
}

Test(sync_plan, checks_only_objects_of_the_right_size)
{
    struct store_object objects[] = {{"step_0000005/tp00_pp00_dp00.h5", 7}};
    struct remote_entry remote = {.objects = {objects, 1}};
    struct manifest_file file = {.name = "tp00_pp00_dp00.h5", .bytes = 7};

    cr_assert_eq(sync_plan_file(&file, &remote), SYNC_FILE_CHECK);
    file.bytes = 8;
    cr_assert_eq(sync_plan_file(&file, &remote), SYNC_FILE_COPY);
    cr_assert_eq(sync_plan_file(&file, NULL), SYNC_FILE_COPY);
}

Test(sync_plan, prune_keeps_the_newest_complete_ones_and_foreign_pushes)
{
    struct remote_entry entries[] = {
        {.step = 1, .complete = true}, {.step = 2, .claim_run_id = "x"}, {.step = 3},
        {.step = 4, .complete = true}, {.step = 5, .complete = true},    {.step = 6},
    };
    struct remote_catalog catalog = {entries, 6};
    bool go[6];

    sync_plan_prune(&catalog, 2, go);
    cr_assert(go[0] && !go[1] && go[2] && !go[3] && !go[4] && !go[5]);
    sync_plan_prune(&catalog, 0, go); /* never the last whole one */
    cr_assert(go[0] && !go[1] && go[2] && go[3] && !go[4] && !go[5]);
}
