/* Claims about communication between rank processes. The ranks are comm_rank (comm_rank.c), started
 * by exec, since a fork after OpenMP hangs, and bound to this process by a death signal.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/clock.h"

#define RANKS_MAX 8
#define INIT_MS 20000
#define CALL_MS 20000
/* A death is noticed within some 10 ms; the rest is for machines on which others work, too. */
#define NOTICE_MS 1000

struct rank_process {
    pid_t pid;
    FILE *out;
    char status[32];
    char message[1200];
    int lost;
    int beats;
    long long ns;
    int exit_code;
};

struct job {
    char folder[400];
    const char *scenario;
    int size;
    int generation;
    int init_ms, call_ms;
    struct rank_process ranks[RANKS_MAX];
};

static struct job make_job(const char *scenario, int size)
{
    struct job job = {
        .scenario = scenario,
        .size = size,
        .generation = 7,
        .init_ms = INIT_MS,
        .call_ms = CALL_MS,
    };
    const char *parent = getenv("TMPDIR");

    snprintf(job.folder, sizeof(job.folder), "%s/comm-XXXXXX", parent != NULL ? parent : "/tmp");
    cr_assert_not_null(mkdtemp(job.folder));
    return job;
}

static void exec_rank(const struct job *job, int rank, int out)
{
    char numbers[5][16];
    int values[5] = {rank, job->size, job->generation, job->init_ms, job->call_ms};

    for (int i = 0; i < 5; i++) {
        snprintf(numbers[i], sizeof(numbers[i]), "%d", values[i]);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, STDOUT_FILENO);
    execl(COMM_RANK, COMM_RANK, job->scenario, job->folder, numbers[0], numbers[1], numbers[2],
          numbers[3], numbers[4], (char *)NULL);
    _exit(127);
}

static void start_rank(struct job *job, int rank)
{
    struct rank_process *process = &job->ranks[rank];
    int ends[2];

    cr_assert_eq(pipe(ends), 0);
    process->pid = fork();
    cr_assert_geq(process->pid, 0);
    if (process->pid == 0) {
        close(ends[0]);
        exec_rank(job, rank, ends[1]);
    }
    close(ends[1]);
    process->out = fdopen(ends[0], "r");
    cr_assert_not_null(process->out);
}

static void start_all(struct job *job)
{
    for (int i = 0; i < job->size; i++) {
        start_rank(job, i);
    }
}

/* Until the rank's comm_open has returned. */
static void await_open(struct job *job, int rank)
{
    char line[64] = "";

    cr_assert_not_null(fgets(line, sizeof(line), job->ranks[rank].out), "rank %d ended", rank);
    cr_assert_str_eq(line, "open\n", "rank %d said: %s", rank, line);
}

static void await_all_open(struct job *job)
{
    for (int i = 0; i < job->size; i++) {
        await_open(job, i);
    }
}

static void collect_rank(struct job *job, int rank)
{
    struct rank_process *process = &job->ranks[rank];
    char line[1200];
    int state = 0;

    while (fgets(line, sizeof(line), process->out) != NULL) {
        if (sscanf(line, "status=%31s lost=%d ns=%lld beats=%d %1199[^\n]", process->status,
                   &process->lost, &process->ns, &process->beats, process->message) < 4 &&
            strcmp(line, "open\n") != 0) {
            snprintf(process->message, sizeof(process->message), "%s", line);
        }
    }
    fclose(process->out);
    cr_assert_eq(waitpid(process->pid, &state, 0), process->pid);
    process->exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

static void kill_rank(struct job *job, int rank, int signal_number)
{
    cr_assert_eq(kill(job->ranks[rank].pid, signal_number), 0);
}

static void expect(const struct job *job, int rank, const char *status)
{
    const struct rank_process *process = &job->ranks[rank];

    cr_assert_eq(process->exit_code, 0, "rank %d of %d, %s: exit %d: %s", rank, job->size,
                 job->scenario, process->exit_code, process->message);
    cr_assert_str_eq(process->status, status, "rank %d of %d, %s: %s: %s", rank, job->size,
                     job->scenario, process->status, process->message);
}

static void expect_said(const struct job *job, int rank, const char *text)
{
    cr_assert_not_null(strstr(job->ranks[rank].message, text), "rank %d said: %s, wanted: %s", rank,
                       job->ranks[rank].message, text);
}

/* Nothing may lie in the folder any more; removes it. */
static void end_job(struct job *job)
{
    cr_assert_eq(rmdir(job->folder), 0, "left in '%s': %s", job->folder, strerror(errno));
}

static void run_ok(const char *scenario, int size)
{
    struct job job = make_job(scenario, size);

    start_all(&job);
    for (int i = 0; i < size; i++) {
        collect_rank(&job, i);
    }
    for (int i = 0; i < size; i++) {
        expect(&job, i, "OK");
    }
    end_job(&job);
}

TestSuite(comm, .timeout = 120);

Test(comm, results_are_the_serial_sum_bit_for_bit_for_1_to_8_ranks)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 8};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        run_ok("check", sizes[i]);
    }
}

Test(comm, all_subsets_of_five_ranks_are_groups_of_their_own)
{
    run_ok("split", 1);
    run_ok("split", 5);
}

Test(comm, an_exchange_of_everybody_with_everybody_does_not_block)
{
    run_ok("exchange", 2);
    run_ok("exchange", 4);
}

/* Kills `victim` when all have opened and `delay_us` have passed; all others must name it. */
static double kill_one(const char *scenario, int size, int victim, int delay_us)
{
    struct job job = make_job(scenario, size);
    long long killed_ns = 0;
    double slowest_ms = 0;

    start_all(&job);
    await_all_open(&job);
    usleep((useconds_t)delay_us);
    killed_ns = clock_monotonic_ns();
    kill_rank(&job, victim, SIGKILL);
    for (int i = 0; i < size; i++) {
        collect_rank(&job, i);
    }
    for (int i = 0; i < size; i++) {
        char name[32];
        double ms = (double)(job.ranks[i].ns - killed_ns) / 1e6;

        if (i == victim) {
            cr_assert_eq(job.ranks[i].exit_code, 128 + SIGKILL);
            continue;
        }
        snprintf(name, sizeof(name), "rank %d died", victim);
        expect(&job, i, "PEER_LOST");
        expect_said(&job, i, name);
        cr_assert_eq(job.ranks[i].lost, victim, "rank %d blames %d", i, job.ranks[i].lost);
        cr_assert_lt(ms, NOTICE_MS, "rank %d noticed after %.1f ms", i, ms);
        slowest_ms = ms > slowest_ms ? ms : slowest_ms;
    }
    end_job(&job);
    return slowest_ms;
}

static int compare_doubles(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;

    return (difference > 0) - (difference < 0);
}

static void kill_many(const char *scenario, int size, int times, unsigned seed)
{
    double ms[64];

    for (int i = 0; i < times; i++) {
        int victim = rand_r(&seed) % size;

        ms[i] = kill_one(scenario, size, victim, rand_r(&seed) % 20000);
    }
    qsort(ms, (size_t)times, sizeof(ms[0]), compare_doubles);
    printf("%s: last survivor knows after %.1f ms (median of %d), %.1f ms (worst)\n", scenario,
           ms[times / 2], times, ms[times - 1]);
}

Test(comm, thirty_kills_amid_all_reduces_are_named_by_every_survivor)
{
    kill_many("loop", 4, 30, 20261201);
}

Test(comm, kills_are_named_amid_exchanges_and_while_idle)
{
    kill_many("pipeline", 3, 8, 1);
    kill_many("poll", 3, 4, 2);
}

Test(comm, a_death_at_one_end_of_a_chain_of_groups_is_named_at_the_other)
{
    kill_many("chain", 6, 8, 3);
}

Test(comm, the_first_death_is_named_when_survivors_have_ended_because_of_it)
{
    for (int i = 0; i < 3; i++) {
        kill_one("bolt", 5, 4 - i, 30000);
    }
}

/* Kills a rank while the others meet it. Before it came they can only wait for it; who starts when
 * all others have ended already lists it among them. */
static void kill_opening(int victim, int delay_us)
{
    struct job job = make_job("poll", 4);
    char name[32];
    char left[440];

    job.init_ms = 500;
    start_all(&job);
    usleep((useconds_t)delay_us);
    kill_rank(&job, victim, SIGKILL);
    for (int i = 0; i < 4; i++) {
        collect_rank(&job, i);
    }
    snprintf(name, sizeof(name), " %d", victim);
    for (int i = 0; i < 4; i++) {
        if (i != victim) {
            expect(&job, i, job.ranks[i].status[0] == 'T' ? "TIMEOUT" : "PEER_LOST");
            expect_said(&job, i, name);
        }
    }
    snprintf(left, sizeof(left), "%s/rank-%d", job.folder, victim);
    unlink(left);
    end_job(&job);
}

Test(comm, a_death_while_the_ranks_meet_is_named_by_all_others)
{
    unsigned seed = 4;

    for (int i = 0; i < 30; i++) {
        int victim = rand_r(&seed) % 4;

        kill_opening(victim, 1000 + rand_r(&seed) % 5000);
    }
}

/* Stops `victim`; all others must name it at the deadline, also those that wait for others. */
static void stop_one(const char *scenario, int size, int victim)
{
    struct job job = make_job(scenario, size);
    long long stopped_ns = 0;

    job.call_ms = 700;
    start_all(&job);
    await_all_open(&job);
    usleep(20000);
    stopped_ns = clock_monotonic_ns();
    kill_rank(&job, victim, SIGSTOP);
    for (int i = 0; i < size; i++) {
        char name[32];
        double ms = 0;

        if (i == victim) {
            continue;
        }
        collect_rank(&job, i);
        snprintf(name, sizeof(name), "rank %d", victim);
        ms = (double)(job.ranks[i].ns - stopped_ns) / 1e6;
        expect(&job, i, "TIMEOUT");
        expect_said(&job, i, name);
        cr_assert_eq(job.ranks[i].lost, victim, "rank %d blames %d: %s", i, job.ranks[i].lost,
                     job.ranks[i].message);
        cr_assert(ms > 400 && ms < 700 + NOTICE_MS, "rank %d ended after %.1f ms", i, ms);
        cr_assert_geq(job.ranks[i].beats, 3, "rank %d beat %d times", i, job.ranks[i].beats);
    }
    kill_rank(&job, victim, SIGCONT);
    collect_rank(&job, victim);
    expect(&job, victim, "TIMEOUT");
    end_job(&job);
}

Test(comm, a_stopped_rank_is_named_at_the_deadline)
{
    stop_one("loop", 4, 2);
    stop_one("pipeline", 3, 1);
}

Test(comm, who_waits_for_a_waiting_rank_names_the_stopped_one)
{
    stop_one("chain", 4, 3);
}

Test(comm, ranks_that_do_not_come_are_named)
{
    struct job job = make_job("open", 5);

    job.init_ms = 400;
    start_rank(&job, 0);
    start_rank(&job, 2);
    start_rank(&job, 3);
    for (int i = 0; i < 4; i += i == 0 ? 2 : 1) {
        collect_rank(&job, i);
        expect(&job, i, "TIMEOUT");
        expect_said(&job, i, "ranks 1, 4 of 5 did not come");
    }
    end_job(&job);
}

Test(comm, an_abort_in_another_thread_wakes_all)
{
    struct job job = make_job("abort", 4);

    start_all(&job);
    for (int i = 0; i < 4; i++) {
        collect_rank(&job, i);
        expect(&job, i, "ABORTED");
        expect_said(&job, i, "aborted by rank 0: the drill says so");
    }
    end_job(&job);
}

Test(comm, survivors_open_a_new_generation_in_the_same_process)
{
    struct job job = make_job("reopen", 4);

    start_all(&job);
    await_all_open(&job);
    usleep(20000);
    kill_rank(&job, 3, SIGKILL);
    for (int i = 0; i < 4; i++) {
        collect_rank(&job, i);
    }
    for (int i = 0; i < 3; i++) {
        expect(&job, i, "OK");
    }
    end_job(&job);
}

Test(comm, another_length_than_was_sent_is_corrupt)
{
    struct job job = make_job("mismatch", 2);

    start_all(&job);
    for (int i = 0; i < 2; i++) {
        collect_rank(&job, i);
        expect(&job, i, "CORRUPT");
        expect_said(&job, i, "rank 0 sent 40 bytes in group 'world' where rank 1 receives 48");
    }
    end_job(&job);
}

Test(comm, members_that_make_different_calls_are_told)
{
    struct job job = make_job("disagree", 3);

    start_all(&job);
    for (int i = 0; i < 3; i++) {
        collect_rank(&job, i);
        expect(&job, i, "CORRUPT");
        expect_said(&job, i, "makes barrier");
    }
    end_job(&job);
}

Test(comm, a_rank_that_closes_in_good_order_is_missed_only_by_those_who_need_it)
{
    struct job job = make_job("leave", 3);

    start_all(&job);
    for (int i = 0; i < 3; i++) {
        collect_rank(&job, i);
        expect(&job, i, i == 1 ? "OK" : "PEER_LOST");
    }
    expect_said(&job, 0, "rank 1 left");
    end_job(&job);
}

static int connect_as_stranger(const struct job *job)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(name.sun_path, sizeof(name.sun_path), "%.80s/rank-0", job->folder);
    for (int i = 0; connect(fd, (struct sockaddr *)&name, sizeof(name)) != 0; i++) {
        cr_assert_lt(i, 5000, "cannot connect: %s", strerror(errno));
        usleep(1000);
    }
    return fd;
}

Test(comm, strangers_are_turned_away)
{
    struct job job = make_job("check", 2);
    int silent = -1;
    int loud = -1;

    start_rank(&job, 0);
    silent = connect_as_stranger(&job);
    loud = connect_as_stranger(&job);
    cr_assert_eq(send(loud, "who is there?", 13, MSG_NOSIGNAL), 13);
    usleep(20000);
    start_rank(&job, 1);
    for (int i = 0; i < 2; i++) {
        collect_rank(&job, i);
        expect(&job, i, "OK");
    }
    close(silent);
    close(loud);
    end_job(&job);
}

Test(comm, another_generation_is_turned_away_and_told)
{
    struct job job = make_job("check", 2);
    struct job old = job;

    old.generation = job.generation - 1;
    start_rank(&job, 0);
    start_rank(&old, 1);
    collect_rank(&old, 1);
    expect(&old, 1, "ABORTED");
    expect_said(&old, 1, "newer generation 7");
    start_rank(&job, 1);
    for (int i = 0; i < 2; i++) {
        collect_rank(&job, i);
        expect(&job, i, "OK");
    }
    end_job(&job);
}

Test(comm, a_stale_name_in_the_folder_does_not_hinder)
{
    struct job job = make_job("check", 2);

    start_rank(&job, 0);
    close(connect_as_stranger(&job));
    kill_rank(&job, 0, SIGKILL);
    collect_rank(&job, 0);
    start_all(&job);
    for (int i = 0; i < 2; i++) {
        collect_rank(&job, i);
        expect(&job, i, "OK");
    }
    end_job(&job);
}

Test(comm, a_long_folder_with_blanks_is_fine)
{
    struct job job = make_job("check", 2);
    char parent[400];

    snprintf(parent, sizeof(parent), "%s", job.folder);
    snprintf(job.folder, sizeof(job.folder), "%.100s/%0120d with blanks", parent, 0);
    cr_assert_eq(mkdir(job.folder, 0700), 0);
    start_all(&job);
    for (int i = 0; i < 2; i++) {
        collect_rank(&job, i);
        expect(&job, i, "OK");
    }
    end_job(&job);
    cr_assert_eq(rmdir(parent), 0);
}

Test(comm, a_folder_that_is_not_there_is_named)
{
    struct job job = make_job("check", 2);

    end_job(&job);
    start_rank(&job, 0);
    collect_rank(&job, 0);
    expect(&job, 0, "NOT_FOUND");
    expect_said(&job, 0, job.folder);
}
