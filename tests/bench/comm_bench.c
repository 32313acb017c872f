/* Milliseconds per all-reduce and per exchange between neighbours, by size. Not run by ctest.
 *
 * comm_bench RANKS [REPEATS]: starts RANKS processes, prints the median over the repeats of the
 * slowest rank's time.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/mem.h"
#include "train/comm/comm.h"

#define REPEATS_MAX 1000
#define LARGEST_BYTES ((size_t)64 << 20)
#define BATCH 100 /* small calls are timed together */

static int compare_doubles(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;

    return (difference > 0) - (difference < 0);
}

static enum status shift(struct comm *world, char *out, char *in, size_t bytes)
{
    int me = comm_rank(world), size = comm_size(world);
    struct comm_transfer transfers[2] = {
        {(me + 1) % size, out, bytes, 1},
        {(me + size - 1) % size, in, bytes, 0},
    };

    return comm_exchange(world, transfers, 2);
}

static enum status measure(struct comm *world, char *buffer, size_t bytes, int repeats,
                           int is_exchange)
{
    int batch = bytes <= 65536 ? BATCH : 1;
    double times[REPEATS_MAX];
    enum status st = STATUS_OK;

    for (int i = 0; i < repeats; i++) {
        double ms = 0;
        int64_t start = 0;

        TRY(st, comm_barrier(world), done);
        start = clock_monotonic_ns();
        for (int k = 0; k < batch; k++) {
            if (is_exchange) {
                TRY(st, shift(world, buffer, buffer + LARGEST_BYTES, bytes), done);
            } else {
                TRY(st, comm_all_reduce(world, buffer, bytes / 4, COMM_F32, COMM_SUM), done);
            }
        }
        ms = (double)(clock_monotonic_ns() - start) / 1e6 / batch;
        TRY(st, comm_all_reduce(world, &ms, 1, COMM_F64, COMM_MAX), done);
        times[i] = ms;
    }
    qsort(times, (size_t)repeats, sizeof(times[0]), compare_doubles);
    if (comm_rank(world) == 0) {
        printf("%-10s %9zu bytes: %8.4f ms (best %.4f)\n", is_exchange ? "exchange" : "all-reduce",
               bytes, times[repeats / 2], times[0]);
        fflush(stdout);
    }
done:
    return st;
}

static enum status run(const char *folder, int rank, int size, int repeats)
{
    static const size_t sizes[] = {4, 4096, 65536, 1 << 20, 4 << 20, LARGEST_BYTES};
    struct comm_config config = {
        .rank = rank,
        .size = size,
        .rendezvous_dir = folder,
        .generation = 1,
        .init_timeout_ms = 10000,
        .call_timeout_ms = 10000,
    };
    int64_t start = clock_monotonic_ns();
    struct comm *world = NULL;
    char *buffer = NULL;
    enum status st = STATUS_OK;

    TRY(st, comm_open(&config, &world), done);
    if (rank == 0) {
        printf("open: %.2f ms\n", (double)(clock_monotonic_ns() - start) / 1e6);
    }
    TRY(st, mem_alloc(&buffer, 2, LARGEST_BYTES), done);
    memset(buffer, 0, 2 * LARGEST_BYTES);
    for (int is_exchange = 0; is_exchange < 2 && size > 1; is_exchange++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            TRY(st, measure(world, buffer, sizes[i], repeats, is_exchange), done);
        }
    }
done:
    mem_free(&buffer);
    comm_close(&world);
    return st;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/comm-bench-XXXXXX";
    int size = argc > 1 ? atoi(argv[1]) : 2;
    int repeats = argc > 2 ? atoi(argv[2]) : 21;
    int bad = 0;

    if (size < 1 || size > 64 || repeats < 1 || repeats > REPEATS_MAX || mkdtemp(folder) == NULL) {
        fprintf(stderr, "usage: comm_bench RANKS (1 to 64) [REPEATS]\n");
        return 2;
    }
    for (int i = 0; i < size; i++) {
        if (fork() == 0) {
            enum status st = STATUS_OK;

            prctl(PR_SET_PDEATHSIG, SIGKILL);
            st = run(folder, i, size, repeats);
            if (st != STATUS_OK) {
                status_print("comm_bench", true);
            }
            return status_exit_code(st);
        }
    }
    for (int i = 0; i < size; i++) {
        int state = 0;

        bad |= wait(&state) < 0 || state != 0;
    }
    rmdir(folder);
    return bad;
}
