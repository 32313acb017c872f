/* One rank of a test of comm: does what its first argument says, then prints one line
 *     status=NAME lost=RANK ns=MONOTONIC beats=N message
 * (`ns`: when the last call returned) for test_comm.c, and ends with 0; wrong results end with 1.
 *
 * comm_rank SCENARIO FOLDER RANK SIZE GENERATION INIT_MS CALL_MS
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"
#include "train/comm/comm.h"

#define ELEMENTS_MAX ((size_t)400 << 10)
#define BIG_BYTES ((size_t)3 << 20)

struct rank {
    struct comm_config config;
    struct comm *world;
    int beats;
    int lost; /* remembered before the world is closed */
};

static void report(const struct rank *rank, enum status st)
{
    int lost = rank->world != NULL && rank->lost < 0 ? comm_lost_rank(rank->world) : rank->lost;

    printf("status=%s lost=%d ns=%" PRId64 " beats=%d %s\n", status_name(st), lost,
           clock_monotonic_ns(), rank->beats, st == STATUS_OK ? "" : status_last()->message);
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Element i of member r's input, of any type: values whose float sums depend on the order. */
static void set_value(void *buffer, size_t i, enum comm_type type, int r, uint64_t salt)
{
    uint64_t bits = mix(salt * 1000003u + (uint64_t)r * 7919u + i + 1);
    static const double scales[8] = {1e-3, 1e-2, 1e-1, 1, 10, 1e2, 1e3, 1e4};
    double real = ((double)(bits >> 40) - 8e6) * scales[bits & 7];

    switch (type) {
    case COMM_F32:
        ((float *)buffer)[i] = (float)real;
        break;
    case COMM_F64:
        ((double *)buffer)[i] = real / 3;
        break;
    case COMM_U64:
        ((uint64_t *)buffer)[i] = bits;
        break;
    case COMM_I32:
        ((int32_t *)buffer)[i] = (int32_t)(bits >> 40) - 8000000;
        break;
    }
}

#define FOLD_AS(type)                                                                              \
    do {                                                                                           \
        type *a = (type *)sum + i;                                                                 \
        const type b = ((const type *)next)[i];                                                    \
        *a = op == COMM_SUM ? *a + b : (op == COMM_MAX) == (b > *a) ? b : *a;                      \
    } while (0)

static void fold_serially(void *sum, const void *next, size_t i, enum comm_type type,
                          enum comm_op op)
{
    switch (type) {
    case COMM_F32:
        FOLD_AS(float);
        break;
    case COMM_F64:
        FOLD_AS(double);
        break;
    case COMM_U64:
        FOLD_AS(uint64_t);
        break;
    case COMM_I32:
        FOLD_AS(int32_t);
        break;
    }
}

/* What an all-reduce over `size` members must give. */
static void make_expected(void *expected, void *scratch, size_t count, enum comm_type type,
                          enum comm_op op, int size, uint64_t salt)
{
    for (size_t i = 0; i < count; i++) {
        set_value(expected, i, type, 0, salt);
        for (int r = 1; r < size; r++) {
            set_value(scratch, i, type, r, salt);
            fold_serially(expected, scratch, i, type, op);
        }
    }
}

static void require(bool is_right, const char *what, size_t detail)
{
    if (!is_right) {
        printf("wrong %s (%zu)\n", what, detail);
        exit(1);
    }
}

static enum status check_all_reduce(struct comm *group, void *buffers[3])
{
    static const size_t counts[] = {0, 1, 7, 1000, 4097, 70001, 300007};
    enum status st = STATUS_OK;

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (int type = COMM_F32; type <= COMM_I32; type++) {
            for (int op = COMM_SUM; op <= COMM_MIN; op++) {
                size_t bytes = counts[c] * comm_type_bytes((enum comm_type)type);

                for (size_t i = 0; i < counts[c]; i++) {
                    set_value(buffers[0], i, (enum comm_type)type, comm_rank(group), c);
                }
                make_expected(buffers[1], buffers[2], counts[c], (enum comm_type)type,
                              (enum comm_op)op, comm_size(group), c);
                TRY(st,
                    comm_all_reduce(group, buffers[0], counts[c], (enum comm_type)type,
                                    (enum comm_op)op),
                    done);
                require(memcmp(buffers[0], buffers[1], bytes) == 0, "all-reduce", counts[c]);
            }
        }
    }
done:
    return st;
}

/* Uneven parts, some of them empty, one far longer than the others. */
static size_t part_count(int member, int round)
{
    static const size_t parts[] = {1, 0, 50021, 3, 160001, 64, 0, 17};

    return round == 0 ? 0 : parts[(size_t)(member + round) % 8];
}

static enum status check_parts(struct comm *group, void *buffers[3], int round)
{
    size_t counts[64], bytes[64];
    size_t before = 0, total = 0, mine = 0;
    enum comm_type type = round % 2 ? COMM_F32 : COMM_F64;
    enum status st = STATUS_OK;

    for (int r = 0; r < comm_size(group); r++) {
        counts[r] = part_count(r, round);
        bytes[r] = counts[r] * comm_type_bytes(type);
        before += r < comm_rank(group) ? counts[r] : 0;
        total += counts[r];
    }
    mine = counts[comm_rank(group)];
    for (size_t i = 0; i < total; i++) {
        set_value(buffers[0], i, type, comm_rank(group), 77);
    }
    make_expected(buffers[1], buffers[2], total, type, COMM_SUM, comm_size(group), 77);
    TRY(st, comm_reduce_scatter(group, buffers[0], counts, type), done);
    require(memcmp((char *)buffers[0] + before * comm_type_bytes(type),
                   (char *)buffers[1] + before * comm_type_bytes(type),
                   mine * comm_type_bytes(type)) == 0,
            "reduce-scatter", (size_t)round);
    TRY(st, comm_all_gather(group, buffers[0], bytes), done);
    require(memcmp(buffers[0], buffers[1], total * comm_type_bytes(type)) == 0, "all-gather",
            (size_t)round);
done:
    return st;
}

static enum status check_broadcast(struct comm *group, void *buffers[3])
{
    static const size_t sizes[] = {0, 1, 4096, BIG_BYTES / 2 + 5};
    enum status st = STATUS_OK;

    for (int root = 0; root < comm_size(group); root++) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            memset(buffers[0], comm_rank(group) == root ? root + 65 : 0, sizes[s]);
            memset(buffers[1], root + 65, sizes[s]);
            TRY(st, comm_broadcast(group, buffers[0], sizes[s], root), done);
            require(memcmp(buffers[0], buffers[1], sizes[s]) == 0, "broadcast", sizes[s]);
        }
    }
done:
    return st;
}

static enum status check_nan(struct comm *group)
{
    float values[2] = {comm_rank(group) == 0 ? NAN : 1, (float)comm_rank(group)};
    enum status st = STATUS_OK;

    TRY(st, comm_all_reduce(group, values, 2, COMM_F32, COMM_MAX), done);
    require(isnan(values[0]) && values[1] == (float)(comm_size(group) - 1), "max of a NaN", 0);
done:
    return st;
}

static enum status check_group(struct comm *group)
{
    uint64_t before = comm_sequence(group);
    void *buffers[3] = {0};
    enum status st = STATUS_OK;

    for (int i = 0; i < 3; i++) {
        TRY(st, mem_alloc(&buffers[i], ELEMENTS_MAX, sizeof(double)), done);
    }
    TRY(st, check_all_reduce(group, buffers), done);
    for (int round = 0; round < 6; round++) {
        TRY(st, check_parts(group, buffers, round), done);
    }
    TRY(st, check_broadcast(group, buffers), done);
    TRY(st, check_nan(group), done);
    TRY(st, comm_barrier(group), done);
    require(comm_sequence(group) == before + 7 * 4 * 3 + 6 * 2 + 4 * (uint64_t)comm_size(group) + 2,
            "sequence", comm_sequence(group));
done:
    for (int i = 0; i < 3; i++) {
        mem_free(&buffers[i]);
    }
    return st;
}

static enum status do_check(struct rank *rank)
{
    return check_group(rank->world);
}

static enum status sum_ranks(struct comm *group, const int *members, int count)
{
    uint64_t sum = (uint64_t)members[comm_rank(group)] + 1;
    uint64_t expected = 0;
    enum status st = STATUS_OK;

    for (int i = 0; i < count; i++) {
        expected += (uint64_t)members[i] + 1;
    }
    TRY(st, comm_all_reduce(group, &sum, 1, COMM_U64, COMM_SUM), done);
    require(sum == expected && comm_size(group) == count, "sum in a group", (size_t)sum);
done:
    return st;
}

/* Every subset of the world, members in falling order, all open at once. */
static enum status do_split(struct rank *rank)
{
    struct comm *groups[256] = {0};
    int size = rank->config.size;
    enum status st = STATUS_OK;

    for (int round = 0; round < 3; round++) {
        for (int set = 1; set < 1 << size; set++) {
            int members[8];
            int count = 0;

            for (int r = size - 1; r >= 0; r--) {
                members[count] = r;
                count += set >> r & 1;
            }
            if ((set >> rank->config.rank & 1) == 0) {
                continue;
            }
            if (round == 0) {
                TRY(st, comm_split(rank->world, "subset", members, count, &groups[set]), done);
            }
            TRY(st, sum_ranks(groups[set], members, count), done);
        }
    }
done:
    for (int set = 0; set < 256; set++) {
        comm_close(&groups[set]);
    }
    return st;
}

/* Everybody sends to everybody at once: large ones first, so that no order but "all" works. */
static enum status do_exchange(struct rank *rank)
{
    static const size_t sizes[] = {BIG_BYTES, 1, 0, 65537, 524288};
    struct comm_transfer transfers[COMM_EXCHANGE_MAX];
    unsigned char *buffers[COMM_EXCHANGE_MAX] = {0};
    int me = comm_rank(rank->world), size = comm_size(rank->world);
    enum status st = STATUS_OK;

    for (int i = 0; i < COMM_EXCHANGE_MAX; i++) {
        TRY(st, mem_alloc(&buffers[i], BIG_BYTES, 1), done);
    }
    for (int round = 0; round < 20; round++) {
        int count = 0;

        for (int peer = 0; peer < size; peer++) {
            for (int k = 0; k < 4 && peer != me; k++) {
                size_t bytes = sizes[(round + k / 2) % 5];

                memset(buffers[count], k % 2 ? 0 : me * 16 + round % 16 + k, bytes);
                transfers[count] = (struct comm_transfer){peer, buffers[count], bytes, k % 2 == 0};
                count++;
            }
        }
        TRY(st, comm_exchange(rank->world, transfers, count), done);
        for (int i = 0; i < count; i++) {
            int k = i % 4;
            int from = transfers[i].is_send ? me : transfers[i].peer;

            for (size_t b = 0; b < transfers[i].bytes; b++) {
                require(buffers[i][b] == (unsigned char)(from * 16 + round % 16 + k / 2 * 2),
                        "exchange", b);
            }
        }
    }
done:
    for (int i = 0; i < COMM_EXCHANGE_MAX; i++) {
        mem_free(&buffers[i]);
    }
    return st;
}

static enum status loop_until_failure(struct comm *group)
{
    float *values = NULL;
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&values, (size_t)1 << 20, sizeof(float)), done);
    while (st == STATUS_OK) {
        st = comm_all_reduce(group, values, (size_t)1 << 20, COMM_F32, COMM_SUM);
    }
done:
    mem_free(&values);
    return st;
}

static enum status do_loop(struct rank *rank)
{
    return loop_until_failure(rank->world);
}

/* A line of stages that pass tensors on for ever. */
static enum status do_pipeline(struct rank *rank)
{
    int me = rank->config.rank, size = rank->config.size;
    unsigned char *tensors[2] = {0};
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&tensors[0], BIG_BYTES, 1), done);
    TRY(st, mem_alloc(&tensors[1], BIG_BYTES, 1), done);
    while (st == STATUS_OK) {
        struct comm_transfer transfers[2];
        int count = 0;

        if (me > 0) {
            transfers[count++] = (struct comm_transfer){me - 1, tensors[0], BIG_BYTES, 0};
        }
        if (me < size - 1) {
            transfers[count++] = (struct comm_transfer){me + 1, tensors[1], BIG_BYTES, 1};
        }
        st = comm_exchange(rank->world, transfers, count);
    }
done:
    mem_free(&tensors[0]);
    mem_free(&tensors[1]);
    return st;
}

/* Groups of neighbours only ({0,1}, {1,2}, ...): a fault reaches the far end through others. */
static enum status do_chain(struct rank *rank)
{
    struct comm *groups[2] = {0};
    int me = rank->config.rank, size = rank->config.size;
    uint64_t value = 0;
    enum status st = STATUS_OK;

    for (int left = me > 0 ? me - 1 : 0; left <= me && left < size - 1; left++) {
        int pair[2] = {left, left + 1};

        TRY(st, comm_split(rank->world, "pair", pair, 2, &groups[left == me]), done);
    }
    while (st == STATUS_OK) {
        for (int i = 0; i < 2 && st == STATUS_OK; i++) {
            if (groups[i] != NULL) {
                st = comm_all_reduce(groups[i], &value, 1, COMM_U64, COMM_SUM);
            }
        }
    }
    rank->lost = comm_lost_rank(rank->world);
    require(comm_barrier(rank->world) == st, "status of a later call", (size_t)st);
    require(comm_poll(rank->world) == st, "status of a poll", (size_t)st);
done:
    comm_close(&groups[0]);
    comm_close(&groups[1]);
    return st;
}

/* Joins and then does nothing but look: what an idle rank learns. */
static enum status do_poll(struct rank *rank)
{
    enum status st = STATUS_OK;

    while (st == STATUS_OK) {
        clock_sleep_ms(1);
        st = comm_poll(rank->world);
    }
    return st;
}

static enum status abort_later(void *context)
{
    clock_sleep_ms(100);
    comm_abort(context, "the drill says so");
    return STATUS_OK;
}

/* Rank 0 aborts from a second thread; the last rank does not come, so that all others wait. */
static enum status do_abort(struct rank *rank)
{
    struct thread_task *task = NULL;
    enum status st = STATUS_OK;
    enum status joined = STATUS_OK;

    if (rank->config.rank == 0) {
        TRY(st, thread_task_start(abort_later, rank->world, &task), done);
    }
    st = rank->config.rank == rank->config.size - 1 ? do_poll(rank) : comm_barrier(rank->world);
    joined = thread_task_join(task);
    require(joined == STATUS_OK, "thread", 0);
done:
    return st;
}

/* Survives the death of the last rank: closes, opens the next generation without it, works. */
static enum status do_reopen(struct rank *rank)
{
    enum status st = loop_until_failure(rank->world);

    require(st == STATUS_PEER_LOST, "status before the new generation", (size_t)st);
    require(comm_lost_rank(rank->world) == rank->config.size - 1, "lost rank", 0);
    comm_close(&rank->world);
    rank->config.generation++;
    rank->config.size--;
    TRY(st, comm_open(&rank->config, &rank->world), done);
    TRY(st, check_group(rank->world), done);
done:
    return st;
}

static enum status do_mismatch(struct rank *rank)
{
    char bytes[64] = {0};
    int me = rank->config.rank;
    struct comm_transfer transfer = {1 - me, bytes, me == 0 ? 40 : 48, me == 0};
    enum status st = STATUS_OK;

    TRY(st, comm_exchange(rank->world, &transfer, 1), done);
    st = do_poll(rank);
done:
    return st;
}

static enum status do_disagree(struct rank *rank)
{
    float values[64] = {0};

    return rank->config.rank == 1 ? comm_barrier(rank->world)
                                  : comm_all_reduce(rank->world, values, 64, COMM_F32, COMM_SUM);
}

/* Rank 1 closes in good order; the others learn so only because they wait for it. */
static enum status do_leave(struct rank *rank)
{
    enum status st = STATUS_OK;

    if (rank->config.rank != 1) {
        clock_sleep_ms(200);
        TRY(st, comm_poll(rank->world), done);
        st = comm_barrier(rank->world);
    }
done:
    return st;
}

/* Rank 0 is busy elsewhere when another one dies; those who noticed end without closing, so that
 * several are gone when it looks. */
static enum status do_bolt(struct rank *rank)
{
    struct comm *others = NULL;
    int members[64];
    enum status st = STATUS_OK;

    for (int i = 1; i < rank->config.size; i++) {
        members[i - 1] = i;
    }
    if (rank->config.rank == 0) {
        clock_sleep_ms(400);
        st = comm_barrier(rank->world);
    } else {
        TRY(st, comm_split(rank->world, "others", members, rank->config.size - 1, &others), done);
        st = loop_until_failure(others);
        report(rank, st);
        fflush(stdout);
        _exit(0);
    }
done:
    return st;
}

static enum status do_open(struct rank *rank)
{
    (void)rank;
    return STATUS_OK;
}

static const struct {
    const char *name;
    enum status (*run)(struct rank *rank);
} scenarios[] = {
    {"open", do_open},         {"check", do_check},       {"split", do_split},
    {"exchange", do_exchange}, {"loop", do_loop},         {"pipeline", do_pipeline},
    {"chain", do_chain},       {"poll", do_poll},         {"abort", do_abort},
    {"reopen", do_reopen},     {"mismatch", do_mismatch}, {"disagree", do_disagree},
    {"leave", do_leave},       {"bolt", do_bolt},
};

static void count_beat(void *context)
{
    ++*(int *)context;
}

static enum status run(struct rank *rank, const char *scenario)
{
    enum status st = STATUS_OK;

    rank->lost = -1;
    TRY(st, comm_open(&rank->config, &rank->world), done);
    printf("open\n");
    fflush(stdout);
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (strcmp(scenario, scenarios[i].name) == 0) {
            TRY(st, scenarios[i].run(rank), done);
        }
    }
done:
    return st;
}

int main(int argc, char **argv)
{
    struct rank rank = {0};
    enum status st = STATUS_OK;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 8) {
        return 2;
    }
    rank.config = (struct comm_config){
        .rendezvous_dir = argv[2],
        .rank = atoi(argv[3]),
        .size = atoi(argv[4]),
        .generation = (uint64_t)atoll(argv[5]),
        .init_timeout_ms = atoll(argv[6]),
        .call_timeout_ms = atoll(argv[7]),
        .on_wait = count_beat,
        .on_wait_context = &rank.beats,
    };
    st = run(&rank, argv[1]);
    report(&rank, st);
    comm_close(&rank.world);
    return 0;
}
