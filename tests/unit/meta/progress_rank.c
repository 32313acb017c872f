/* progress_rank RUN_DIR: the rank's side of a case in test_run_env.c, started through exec as an
 * agent starts a rank. Exit status 0 when it found its page.
 */
#include <stdio.h>

#include "ckpt/meta/run_env.h"

int main(int argc, char **argv)
{
    struct run_env env = {.rank = 3, .world_size = 8, .has_agent = true, .generation = 2};
    struct progress *progress = NULL;

    if (argc != 2) {
        return 2;
    }
    (void)snprintf(env.run_dir, sizeof env.run_dir, "%s", argv[1]);
    if (progress_open(&env, &progress) != STATUS_OK) {
        status_print("progress_rank", true);
        return 1;
    }
    struct progress_page *page = progress_page(progress);
    progress_set_phase(progress, PROGRESS_START);
    progress_set_phase(progress, PROGRESS_SAVE);
    progress_beat(progress);
    page->step = 42;
    page->micro_batch = 3;
    page->committed_step = 40;
    progress_close(&progress);
    return 0;
}
