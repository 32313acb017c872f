/* The progress page, shared memory between the agent and one rank; see run_env.h. Before it: the
 * loop of train beats; after it: the agent's detector compares counts on its own clock.
 *
 * Invariants: a page is made anew for each generation (a new file under the old name), so that a
 * rank of an earlier one that still runs cannot beat for its successor. The magic is stored last.
 * Its blocks are reserved, so that a full disk is an error here and not a SIGBUS later.
 */
#include "ckpt/meta/run_env.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/mem.h"

#define PAGE_BYTES 4096

_Static_assert(sizeof(struct progress_page) <= PAGE_BYTES, "a progress page is one page");

struct progress {
    struct progress_page *page;
};

static enum status wrap_page(void *memory, const char *path, struct progress **out_progress)
{
    enum status st = STATUS_OK;

    if (memory == MAP_FAILED) {
        return FAIL_ERRNO("cannot map progress page '%s'", path);
    }
    st = mem_alloc(out_progress, 1, sizeof **out_progress);
    if (st != STATUS_OK) {
        (void)munmap(memory, PAGE_BYTES);
        return st;
    }
    (*out_progress)->page = memory;
    return STATUS_OK;
}

static enum status page_path(char out_path[FS_PATH_MAX], const char *run_dir, int rank)
{
    if (snprintf(out_path, FS_PATH_MAX, "%s/progress/rank_%05d", run_dir, rank) >= FS_PATH_MAX) {
        return FAIL(STATUS_USAGE, "path of run folder '%s' is too long", run_dir);
    }
    return STATUS_OK;
}

/* The rank is started after this, so it sees the whole page. */
static void fill_page(struct progress_page *page, uint64_t generation)
{
    page->generation = generation;
    atomic_store(&page->committed_step, -1);
    page->magic = PROGRESS_MAGIC;
}

enum status progress_create(const char *run_dir, int rank, uint64_t generation,
                            struct progress **out_progress)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX], directory[FS_PATH_MAX];
    int fd = -1;

    *out_progress = NULL;
    TRY(st, page_path(path, run_dir, rank), done);
    fs_parent(directory, path);
    TRY(st, fs_make_dirs(fs_posix(), directory), done);
    if (unlink(path) != 0 && errno != ENOENT) {
        st = FAIL_ERRNO("cannot remove old progress page '%s'", path);
        goto done;
    }
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        st = FAIL_ERRNO("cannot make progress page '%s'", path);
        goto done;
    }
    errno = posix_fallocate(fd, 0, PAGE_BYTES);
    if (errno != 0) {
        st = FAIL_ERRNO("cannot reserve progress page '%s'", path);
        goto done;
    }
    TRY(st,
        wrap_page(mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), path,
                  out_progress),
        done);
    fill_page((*out_progress)->page, generation);
done:
    if (fd >= 0) {
        (void)close(fd);
    }
    return st;
}

static enum status open_page(const struct run_env *env, struct progress **out_progress)
{
    enum status st = STATUS_OK;
    char path[FS_PATH_MAX];
    struct stat stat;
    int fd = -1;

    TRY(st, page_path(path, env->run_dir, env->rank), done);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &stat) != 0) {
        st = FAIL_ERRNO("cannot open progress page '%s'", path);
        goto done;
    }
    if (stat.st_size < PAGE_BYTES) {
        st = FAIL(STATUS_CORRUPT, "progress page '%s' has only %" PRId64 " bytes", path,
                  (int64_t)stat.st_size);
        goto done;
    }
    TRY(st,
        wrap_page(mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), path,
                  out_progress),
        done);
    const struct progress_page *page = (*out_progress)->page;
    if (page->magic != PROGRESS_MAGIC) {
        st = FAIL(STATUS_CORRUPT, "progress page '%s' was not made by this build's agent", path);
    } else if (page->generation != env->generation) {
        st = FAIL(STATUS_ABORTED,
                  "progress page '%s' is of generation %" PRIu64 ", this rank of %" PRIu64
                  ": the agent has gone on without it",
                  path, page->generation, env->generation);
    }
    if (st != STATUS_OK) {
        progress_close(out_progress);
    }
done:
    if (fd >= 0) {
        (void)close(fd);
    }
    return st;
}

enum status progress_open(const struct run_env *env, struct progress **out_progress)
{
    enum status st = STATUS_OK;

    *out_progress = NULL;
    if (env->has_agent) {
        TRY(st, open_page(env, out_progress), done);
    } else {
        TRY(st,
            wrap_page(
                mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
                "(anonymous)", out_progress),
            done);
        fill_page((*out_progress)->page, env->generation);
    }
    atomic_store(&(*out_progress)->page->pid, getpid());
    progress_beat(*out_progress);
done:
    return st;
}

struct progress_page *progress_page(struct progress *progress)
{
    return progress->page;
}

void progress_close(struct progress **progress)
{
    if (*progress != NULL) {
        (void)munmap((*progress)->page, PAGE_BYTES);
        mem_free(progress);
    }
}

void progress_beat(struct progress *progress)
{
    atomic_fetch_add_explicit(&progress->page->beat, 1, memory_order_relaxed);
}

void progress_set_phase(struct progress *progress, enum progress_phase phase)
{
    CHECK((unsigned)phase < PROGRESS_PHASE_COUNT);
    atomic_store_explicit(&progress->page->phase, (uint32_t)phase, memory_order_relaxed);
    progress_beat(progress);
}

const char *progress_phase_name(enum progress_phase phase)
{
    static const char *const names[PROGRESS_PHASE_COUNT] = {
        [PROGRESS_NONE] = "none", [PROGRESS_START] = "start", [PROGRESS_LOAD] = "load",
        [PROGRESS_STEP] = "step", [PROGRESS_SAVE] = "save",   [PROGRESS_EVAL] = "eval",
        [PROGRESS_EXIT] = "exit"};

    CHECK((unsigned)phase < PROGRESS_PHASE_COUNT);
    return names[phase];
}
