/* A training that is killed, stopped, moved to another layout or started again wrongly: by real
 * ranks of holdfast-train. "The same" always means equal state hashes and equal printed losses.
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/fs.h"
#include "tests/support/ranks.h"

#define TIMEOUT_S 60
#define STEPS 40
#define EVAL_INTERVAL 8
#define TEXT_MAX 64

/* Words and how many: the last two arguments of ranks_add. */
#define WORD_ARRAY(...) ((const char *const[]){__VA_ARGS__})
#define WORDS(...) WORD_ARRAY(__VA_ARGS__), sizeof(WORD_ARRAY(__VA_ARGS__)) / sizeof(char *)

/* One training as its output tells it. */
struct story {
    char losses[STEPS + 1][TEXT_MAX]; /* by step, "" where it was not printed */
    char valid[STEPS + 1][TEXT_MAX];
    char hash[TEXT_MAX]; /* "0x... at step N" */
};

static char save[RANKS_PATH_MAX]; /* a fresh directory for each test */

static void make_save(void)
{
    const char *parent = getenv("TMPDIR");

    snprintf(save, sizeof(save), "%s/resume-XXXXXX", parent != NULL ? parent : "/tmp");
    cr_assert_not_null(mkdtemp(save));
}

static void remove_save(void)
{
    cr_assert_eq(fs_remove_tree(fs_posix(), save), STATUS_OK);
}

TestSuite(train_resume, .init = make_save, .fini = remove_save, .timeout = 200);

/* holdfast-train for a small model with dropout and more than one micro-batch. */
static struct ranks_command train_command(void)
{
    static char program[RANKS_PATH_MAX];
    struct ranks_command command = {0};

    cr_assert_not_null(getenv("HOLDFAST_BIN"), "run the test through ctest");
    snprintf(program, sizeof(program), "%s/holdfast-train", getenv("HOLDFAST_BIN"));
    ranks_add(&command,
              WORDS(program, "--num-layers", "5", "--hidden-size", "32", "--num-attention-heads",
                    "4", "--seq-length", "16", "--max-position-embeddings", "16", "--vocab-size",
                    "61", "--make-vocab-size-divisible-by", "8", "--mock-data",
                    "--micro-batch-size", "1", "--global-batch-size", "4", "--lr", "1e-3",
                    "--lr-warmup-iters", "5", "--lr-decay-style", "cosine", "--train-iters", "40",
                    "--log-interval", "1", "--num-threads", "1", "--eval-interval", "8",
                    "--eval-iters", "2"));
    return command;
}

static void add_save_and_load(struct ranks_command *command, const char *interval)
{
    ranks_add(command, WORDS("--save", save, "--load", save, "--save-interval", interval));
}

static void add_layout(struct ranks_command *command, const char *tp, const char *pp)
{
    ranks_add(command,
              WORDS("--tensor-model-parallel-size", tp, "--pipeline-model-parallel-size", pp));
}

/* --- reading what ranks said -------------------------------------------------------------- */

static void copy_word(char out_text[TEXT_MAX], const char *from, const char *stop)
{
    size_t length = strcspn(from, stop);

    length = length < TEXT_MAX - 1 ? length : TEXT_MAX - 1;
    memcpy(out_text, from, length);
    out_text[length] = 0;
}

/* Finds "BEFORE step ... KEY number" in each line of the text; a step that is printed again must
 * read the same. */
static void read_losses(const char *output, const char *before, const char *key,
                        char losses[STEPS + 1][TEXT_MAX])
{
    for (const char *line = output; (line = strstr(line, before)) != NULL; line++) {
        char *end = NULL;
        unsigned long step = strtoul(line + strlen(before), &end, 10);
        const char *loss = strstr(line, key);
        if (strncmp(end, " on ", 4) == 0) {
            continue; /* after the training, on other samples */
        }
        char text[TEXT_MAX];
        cr_assert(step >= 1 && step <= STEPS && loss != NULL);
        copy_word(text, loss + strlen(key), " ");
        cr_assert(losses[step][0] == 0 || strcmp(losses[step], text) == 0,
                  "step %lu printed %s, then %s", step, losses[step], text);
        strcpy(losses[step], text);
    }
}

/* Adds what the ranks printed to the story. */
static void read_story(const struct ranks *ranks, struct story *story)
{
    char *last = ranks_output(ranks, ranks->size - 1), *first = ranks_output(ranks, 0);

    read_losses(last, "] iteration ", "lm loss: ", story->losses);
    read_losses(last, "validation loss at iteration ", "lm loss value: ", story->valid);
    char *hash = strstr(first, "final state hash ");
    if (hash != NULL) {
        copy_word(story->hash, hash + strlen("final state hash "), "\n");
    }
    free(last);
    free(first);
}

static bool says(const struct ranks *ranks, int rank, const char *text)
{
    char *output = ranks_output(ranks, rank);
    bool found = strstr(output, text) != NULL;

    free(output);
    return found;
}

static void wait_until_said(const struct ranks *ranks, int rank, const char *text)
{
    struct deadline deadline = deadline_in_ms(TIMEOUT_S * 1000);

    while (!says(ranks, rank, text)) {
        if (deadline_passed(deadline)) {
            ranks_dump(ranks);
            cr_assert_fail("nobody said '%s'", text);
        }
        clock_sleep_ms(1);
    }
}

static void expect_exit(struct ranks *ranks, int exit_code)
{
    ranks_wait(ranks, TIMEOUT_S);
    if (!ranks_all_left_with(ranks, exit_code)) {
        ranks_dump(ranks);
        cr_assert_fail("not all left with %d", exit_code);
    }
}

/* Runs a command to its end on `size` ranks and adds to `story` (may be NULL). */
static void run_to(int exit_code, const struct ranks_command *command, int size,
                   struct story *story)
{
    struct ranks ranks;

    ranks_start(&ranks, size, command, -1);
    expect_exit(&ranks, exit_code);
    if (story != NULL) {
        read_story(&ranks, story);
    }
    ranks_remove(&ranks);
}

/* One rank that must leave with `exit_code` and say `text`. */
static void expect_alone(const struct ranks_command *command, long committed_step, int exit_code,
                         const char *text)
{
    struct ranks ranks;

    ranks_start(&ranks, 1, command, committed_step);
    expect_exit(&ranks, exit_code);
    bool said = says(&ranks, 0, text);
    if (!said) {
        ranks_dump(&ranks);
    }
    ranks_remove(&ranks);
    cr_assert(said, "it does not say '%s'", text);
}

static void expect_same(const struct story *a, const struct story *b)
{
    cr_assert_neq(a->hash[0], 0);
    cr_assert_str_eq(a->hash, b->hash);
    for (int step = 1; step <= STEPS; step++) {
        cr_assert_neq(a->losses[step][0], 0);
        cr_assert_str_eq(a->losses[step], b->losses[step], "step %d", step);
        cr_assert_eq(a->valid[step][0] == 0, step % EVAL_INTERVAL != 0);
        cr_assert_str_eq(a->valid[step], b->valid[step], "validation at step %d", step);
    }
}

static bool save_holds(const char *name)
{
    char path[FS_PATH_MAX];

    cr_assert_eq(fs_join(path, save, name), STATUS_OK);
    return fs_exists(fs_posix(), path);
}

/* Visible names in --save that begin with `prefix`. */
static int count_names(const char *prefix)
{
    struct fs_names names;
    int count = 0;

    cr_assert_eq(fs_list(fs_posix(), save, &names), STATUS_OK);
    for (size_t i = 0; i < names.count; i++) {
        count += strncmp(names.names[i], prefix, strlen(prefix)) == 0 ? 1 : 0;
    }
    fs_names_deinit(&names);
    return count;
}

/* The signal may land at any step, also at one that is saved anyway. */
static void expect_saved_each_tenth_step_and_the_last(void)
{
    struct fs_names names;
    int count = 0, last = 0;

    cr_assert_eq(fs_list(fs_posix(), save, &names), STATUS_OK);
    for (size_t i = 0; i < names.count; i++) {
        int step;

        if (sscanf(names.names[i], "step_%d", &step) == 1) {
            count++;
            last = step > last ? step : last;
        }
    }
    fs_names_deinit(&names);
    cr_assert_geq(last, 5);
    cr_assert_eq(count, last / 10 + (last % 10 == 0 ? 0 : 1), "%d saves, last %d", count, last);
}

/* --- killed, stopped ---------------------------------------------------------------------- */

static void check_killed_and_stopped(const char *tp, const char *pp, int size)
{
    struct story straight = {0}, killed = {0}, stopped = {0};
    struct ranks_command command = train_command();
    struct ranks ranks;

    add_layout(&command, tp, pp);
    run_to(0, &command, size, &straight);

    add_save_and_load(&command, "10");
    ranks_start(&ranks, size, &command, -1);
    wait_until_said(&ranks, size - 1, "iteration       12/");
    for (int rank = 0; rank < size; rank++) {
        ranks_signal(&ranks, rank, SIGKILL);
    }
    ranks_wait(&ranks, TIMEOUT_S);
    read_story(&ranks, &killed);
    ranks_remove(&ranks);
    cr_assert_eq(killed.hash[0], 0, "it was over before it was killed");
    run_to(0, &command, size, &killed);
    expect_same(&straight, &killed);

    remove_save();
    make_save();
    ranks_start(&ranks, size, &command, -1);
    wait_until_said(&ranks, size - 1, "iteration        5/");
    ranks_signal(&ranks, size - 1, SIGTERM);
    expect_exit(&ranks, 75);
    read_story(&ranks, &stopped);
    ranks_remove(&ranks);
    expect_saved_each_tenth_step_and_the_last();
    run_to(0, &command, size, &stopped);
    expect_same(&straight, &stopped);
}

Test(train_resume, one_rank_killed_or_stopped_ends_as_if_nothing_had_happened)
{
    check_killed_and_stopped("1", "1", 1);
}

Test(train_resume, four_ranks_killed_or_stopped_end_as_if_nothing_had_happened)
{
    check_killed_and_stopped("2", "1", 4);
    remove_save();
    make_save();
    check_killed_and_stopped("1", "2", 4);
}

Test(train_resume, a_resume_tells_where_from_and_between_which_layouts)
{
    struct ranks_command command = train_command();

    add_save_and_load(&command, "20");
    struct ranks_command first = command;
    add_layout(&first, "2", "1");
    ranks_add(&first, WORDS("--exit-interval", "20"));
    run_to(0, &first, 2, NULL);
    expect_alone(&command, 20, 0, "step 20 of 40, TP 2 x PP 1 x DP 1 -> TP 1 x PP 1 x DP 1, ");
}

Test(train_resume, a_signal_without_a_place_to_save_is_an_interruption)
{
    struct ranks_command command = train_command();
    struct ranks ranks;

    ranks_add(&command, WORDS("--train-iters", "100000", "--log-interval", "5"));
    ranks_start(&ranks, 2, &command, -1);
    wait_until_said(&ranks, 1, "iteration        5/");
    ranks_signal(&ranks, 0, SIGINT);
    expect_exit(&ranks, 130);
    cr_assert(says(&ranks, 0, "without --save nothing is kept"));
    ranks_remove(&ranks);
}

/* --- another layout ----------------------------------------------------------------------- */

Test(train_resume, a_checkpoint_goes_on_in_any_layout)
{
    static const struct {
        const char *tp, *pp, *chunks, *steps;
        int size;
    } layouts[] = {{"1", "1", "0", "4", 1},  {"2", "1", "0", "8", 4},  {"1", "4", "0", "12", 4},
                   {"2", "2", "0", "16", 8}, {"4", "1", "0", "20", 4}, {"1", "2", "3", "24", 2},
                   {"2", "1", "0", "28", 2}, {"2", "2", "3", "32", 8}, {"1", "5", "0", "36", 5},
                   {"1", "1", "0", "40", 2}};
    struct story straight = {0}, moved = {0};
    struct ranks_command command = train_command();

    ranks_add(&command, WORDS("--num-layers", "6"));
    run_to(0, &command, 1, &straight);
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        command = train_command();
        add_save_and_load(&command, "100");
        add_layout(&command, layouts[i].tp, layouts[i].pp);
        ranks_add(&command, WORDS("--num-layers", "6", "--num-virtual-stages-per-pipeline-rank",
                                  layouts[i].chunks, "--exit-interval", layouts[i].steps));
        run_to(0, &command, layouts[i].size, &moved);
    }
    for (int step = 1; step <= STEPS; step++) {
        double a = strtod(straight.losses[step], NULL), b = strtod(moved.losses[step], NULL);
        cr_assert_float_eq(a, b, 1e-5 * a, "step %d: %s and %s", step, straight.losses[step],
                           moved.losses[step]);
    }
}

/* --- where a run may begin ---------------------------------------------------------------- */

static void make_checkpoints(void)
{
    struct ranks_command command = train_command();

    add_save_and_load(&command, "10");
    run_to(0, &command, 1, NULL);
    cr_assert_eq(count_names("step_"), 4);
}

Test(train_resume, a_finished_run_says_so_and_writes_nothing)
{
    struct ranks_command command = train_command();

    make_checkpoints();
    add_save_and_load(&command, "10");
    expect_alone(&command, -1, 0, "the training is done");
    cr_assert_eq(count_names("step_"), 4);
}

Test(train_resume, an_older_step_sets_later_ones_aside)
{
    struct story again = {0}, straight = {0};
    struct ranks_command command = train_command();

    run_to(0, &command, 1, &straight);
    make_checkpoints();
    add_save_and_load(&command, "10");
    ranks_add(&command, WORDS("--ckpt-step", "20"));
    run_to(0, &command, 1, &again);
    cr_assert_str_eq(again.hash, straight.hash);
    cr_assert_eq(count_names("rejected-step_"), 2);
    cr_assert_eq(count_names("step_"), 4);
    /* An agent starts the same command line again after a commit: the flag has had its day. */
    expect_alone(&command, 40, 0, "--ckpt-step 20 is done");
}

Test(train_resume, nothing_to_load_is_said_or_refused)
{
    struct ranks_command command = train_command();

    add_save_and_load(&command, "40");
    ranks_add(&command, WORDS("--exit-interval", "1"));
    struct ranks_command strict = command;
    ranks_add(&strict, WORDS("--exit-on-missing-checkpoint"));
    expect_alone(&strict, -1, 10, "no checkpoint in");
    expect_alone(&command, 30, 10, "this run has committed step 30");
    expect_alone(&command, -1, 0, "starting at step 0");
    expect_alone(&command, 30, 10, "is of step 1");
}

Test(train_resume, checkpoints_of_another_run_are_not_written_among)
{
    struct ranks_command command = train_command();

    make_checkpoints();
    ranks_add(&command, WORDS("--save", save, "--save-interval", "10", "--exit-interval", "1"));
    expect_alone(&command, -1, 2, "--from-scratch");
    cr_assert_eq(count_names("step_"), 4);
    ranks_add(&command, WORDS("--from-scratch"));
    expect_alone(&command, -1, 0, "saved step 1 ");
    cr_assert_eq(count_names("rejected-step_"), 4);
    cr_assert_eq(count_names("step_"), 1);
    /* Started again by an agent, it goes on instead of beginning a third time. */
    expect_alone(&command, 1, 0, "saved step 2 ");
    cr_assert_eq(count_names("rejected-step_"), 4);
}

Test(train_resume, a_commit_that_no_agent_has_seen_is_still_this_runs_own)
{
    struct ranks_command command = train_command();

    command.run_id = "one";
    ranks_add(&command, WORDS("--save", save, "--save-interval", "10", "--exit-interval", "10",
                              "--from-scratch"));
    expect_alone(&command, -1, 0, "saved step 10 ");
    expect_alone(&command, -1, 0, "saved step 20 ");
    cr_assert_eq(count_names("rejected-step_"), 0);
    command.run_id = "two";
    expect_alone(&command, -1, 0, "saved step 10 ");
    cr_assert_eq(count_names("rejected-step_"), 2);
}

Test(train_resume, another_seed_or_shape_is_refused)
{
    struct ranks_command command = train_command();

    make_checkpoints();
    add_save_and_load(&command, "10");
    ranks_add(&command, WORDS("--override-opt-param-scheduler"));
    struct ranks_command other = command;
    ranks_add(&other, WORDS("--seed", "7", "--train-iters", "50"));
    expect_alone(&other, -1, 14, "--seed");
    ranks_add(&command, WORDS("--ffn-hidden-size", "64", "--train-iters", "50"));
    expect_alone(&command, -1, 14, "--ffn-hidden-size");
}

Test(train_resume, an_imported_model_is_a_run_at_step_0)
{
    static char import[RANKS_PATH_MAX], model[RANKS_PATH_MAX], folder[RANKS_PATH_MAX + 8];
    struct ranks_command command = {0};

    snprintf(import, sizeof(import), "%s/holdfast-ckpt", getenv("HOLDFAST_BIN"));
    snprintf(model, sizeof(model), "%s/hf_gpt2/a", getenv("HOLDFAST_TEST_REFS"));
    snprintf(folder, sizeof(folder), "%s/new", save);
    ranks_add(&command, WORDS(import, "import", model, "--save", save));
    run_to(0, &command, 1, NULL);
    command = train_command();
    ranks_add(&command, WORDS("--num-layers", "2", "--hidden-size", "64", "--vocab-size", "512",
                              "--max-position-embeddings", "128", "--load", save, "--save", folder,
                              "--save-interval", "1", "--exit-interval", "1",
                              "--tensor-model-parallel-size", "2"));
    run_to(0, &command, 2, NULL);
    add_save_and_load(&command, "1");
    expect_alone(&command, -1, 2, "--tensor-model-parallel-size 2");
    ranks_add(&command, WORDS("--tensor-model-parallel-size", "1"));
    expect_alone(&command, -1, 0, "step 0 of 40");
    cr_assert(save_holds("step_0000000") && save_holds("step_0000001"));
    ranks_add(&command, WORDS("--from-scratch"));
    expect_alone(&command, -1, 0, "saved step 1 ");
    cr_assert(!save_holds("step_0000000") && count_names("rejected-step_0000000") == 1);
}

/* --- what goes wrong on the way ----------------------------------------------------------- */

Test(train_resume, a_loss_that_is_not_finite_stops_the_run_naming_step_and_rank)
{
    struct ranks_command command = train_command();
    struct ranks ranks;

    ranks_add(&command, WORDS("--lr", "1e6", "--weight-decay", "10", "--min-lr", "1e6"));
    ranks_start(&ranks, 2, &command, -1);
    expect_exit(&ranks, 1);
    /* The update multiplies each weight by -1e7: it takes some steps to leave float32. */
    cr_assert(says(&ranks, 0, " at step ") &&
              says(&ranks, 0, ": not finite first on rank 0: the "));
    ranks_remove(&ranks);
}

Test(train_resume, a_dead_rank_ends_the_others_at_once)
{
    struct ranks_command command = train_command();
    struct ranks ranks;

    ranks_add(&command,
              WORDS("--train-iters", "100000", "--log-interval", "5", "--global-batch-size", "3"));
    ranks_start(&ranks, 3, &command, -1);
    wait_until_said(&ranks, 2, "iteration        5/  100000");
    ranks_signal(&ranks, 1, SIGKILL);
    ranks_wait(&ranks, 5);
    cr_assert(ranks.exit_codes[0] == 13 && ranks.exit_codes[2] == 13, "left with %d and %d",
              ranks.exit_codes[0], ranks.exit_codes[2]);
    cr_assert(says(&ranks, 0, "rank 1"));
    ranks_remove(&ranks);
}

Test(train_resume, a_failed_save_does_not_stop_the_training_but_a_failed_last_one_is_told)
{
    struct ranks_command train = train_command(), command = {0};
    struct ranks ranks;

    add_save_and_load(&train, "10");
    /* Files of more than 100 KB cannot be written, as on a full disk. */
    ranks_add(&command, WORDS("/bin/bash", "-c", "ulimit -f 100; exec \"$@\"", "limited"));
    ranks_add(&command, train.words, train.count);
    ranks_start(&ranks, 1, &command, -1);
    expect_exit(&ranks, 1);
    cr_assert(says(&ranks, 0, "step 10 is not saved"));
    cr_assert(says(&ranks, 0, "iteration       40/"));
    cr_assert(says(&ranks, 0, "the last step 40 is not saved"));
    cr_assert_eq(count_names("step_"), 0);
    ranks_remove(&ranks);
    run_to(0, &train, 1, NULL);
    cr_assert_eq(count_names("step_"), 4);
}
