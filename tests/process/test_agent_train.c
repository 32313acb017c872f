/* The whole loop: the trainer's ranks are killed and stopped under the agent at random moments, and
 * the training ends with the same bits as one that nobody disturbed. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "tests/process/drill.h"

#define RANKS 4
#define HASH_MARK "final state hash "
#define HASH_CHARS 18

static struct drill drill;

static void set_up(void)
{
    drill_init(&drill);
}

static void tear_down(void)
{
    drill_deinit(&drill);
}

TestSuite(agent_train, .init = set_up, .fini = tear_down, .timeout = 200);

/* A small model on TP 2 x DP 2 with dropout, 400 steps, saved every 10 in "DRILL/NAME". */
static void start_training(const char *name)
{
    static char save[FS_PATH_MAX];

    cr_assert_eq(fs_join(save, drill.parent, name), STATUS_OK);
    const char *arguments[] = {"--nproc-per-node",
                               "4",
                               "--",
                               "train",
                               "--mock-data",
                               "--num-layers",
                               "2",
                               "--hidden-size",
                               "32",
                               "--num-attention-heads",
                               "4",
                               "--seq-length",
                               "32",
                               "--max-position-embeddings",
                               "32",
                               "--vocab-size",
                               "257",
                               "--micro-batch-size",
                               "2",
                               "--global-batch-size",
                               "8",
                               "--lr",
                               "1e-3",
                               "--hidden-dropout",
                               "0.1",
                               "--train-iters",
                               "400",
                               "--tensor-model-parallel-size",
                               "2",
                               "--save",
                               save,
                               "--load",
                               save,
                               "--save-interval",
                               "10",
                               "--keep-last",
                               "2",
                               NULL};

    drill_start(&drill, arguments);
}

static void end_training(char out_hash[HASH_CHARS + 1])
{
    int code = drill_wait_exit(&drill, 120000);

    cr_assert_eq(code, 0, "%d:\n%s", code, drill.text);
    const char *hash = strstr(drill.text, HASH_MARK);

    cr_assert_not_null(hash, "no final hash in:\n%s", drill.text);
    (void)snprintf(out_hash, HASH_CHARS + 1, "%s", hash + strlen(HASH_MARK));
}

/* Each generation commits something before one of its ranks gets the next signal. */
static void disturb(const int *signals, int count, unsigned *seed)
{
    for (int i = 0; i < count; i++) {
        pid_t pids[RANKS];
        int victim = rand_r(seed) % RANKS;
        char want[64];

        drill_wait_ranks(&drill, RANKS, pids);
        (void)drill_wait_line(&drill, "saved step ", 60000);
        clock_sleep_ms(rand_r(seed) % 100);
        cr_assert_eq(kill(pids[victim], signals[i]), 0);
        (void)snprintf(want, sizeof want, "generation %d: rank %d (pid ", i + 2, victim);
        (void)drill_wait_line(&drill, want, 10000);
    }
}

Test(agent_train, ends_with_the_bits_of_an_undisturbed_run)
{
    static const int signals[] = {SIGKILL, SIGSTOP, SIGSEGV, SIGKILL};
    unsigned seed = (unsigned)clock_wall_ns();
    char undisturbed[HASH_CHARS + 1], disturbed[HASH_CHARS + 1];

    cr_log_info("seed %u", seed);
    start_training("undisturbed");
    end_training(undisturbed);
    cr_assert_eq(fs_join(drill.run_dir, drill.parent, "another run"), STATUS_OK);
    start_training("disturbed");
    disturb(signals, (int)(sizeof signals / sizeof signals[0]), &seed);
    end_training(disturbed);
    cr_assert_str_eq(disturbed, undisturbed, "seed %u", seed);
}

Test(agent_train, goes_on_after_a_signal_as_if_there_had_been_none)
{
    char undisturbed[HASH_CHARS + 1], stopped[HASH_CHARS + 1];

    start_training("undisturbed");
    end_training(undisturbed);
    cr_assert_eq(fs_join(drill.run_dir, drill.parent, "another run"), STATUS_OK);
    start_training("stopped");
    (void)drill_wait_line(&drill, "saved step ", 60000);
    cr_assert_eq(kill(drill.agent, SIGTERM), 0);
    cr_assert_eq(drill_wait_exit(&drill, 60000), 75);
    start_training("stopped");
    end_training(stopped);
    cr_assert_str_eq(stopped, undisturbed);
}
