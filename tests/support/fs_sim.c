/* The calls of the simulated file system: counting, failing, noting; see fs_sim.h. What they change
 * is kept by fs_sim_disk.c.
 */
#include "tests/support/fs_sim.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/fs_private.h"
#include "ckpt/base/mem.h"
#include "tests/support/fs_sim_disk.h"

struct sim_file {
    struct fs_file base;
    struct node *node;
    uint64_t incarnation;
    bool writable;
};

/* Locks; the caller unlocks whatever the answer. */
static enum status enter(struct fs *fs, const char *what, const char *path)
{
    struct fs_sim *sim = (struct fs_sim *)fs;

    (void)pthread_mutex_lock(&sim->mutex);
    sim->calls++;
    if (sim->cut_at > 0 && sim->calls == sim->cut_at) {
        sim->dead = true;
    }
    if (sim->dead) {
        return FAIL(STATUS_IO, "cannot %s '%s': the machine is off", what, path);
    }
    if (sim->fail_at > 0 && sim->calls == sim->fail_at) {
        return FAIL(sim->fail_code, "cannot %s '%s': made to fail", what, path);
    }
    return STATUS_OK;
}

static void leave(struct fs *fs)
{
    (void)pthread_mutex_unlock(&((struct fs_sim *)fs)->mutex);
}

static __attribute__((format(printf, 2, 3))) void note(struct fs_sim *sim, const char *format, ...)
{
    char line[2 * FS_PATH_MAX + 32];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sim->log = fs_sim_grow(sim->log, (size_t)sim->log_count, sizeof *sim->log);
    sim->log[sim->log_count++] = fs_sim_copy_text(line);
}

static enum status enter_file(struct fs *fs, const char *what, struct fs_file *file,
                              struct node **out_node)
{
    enum status st = enter(fs, what, file->path);
    struct sim_file *sim_file = (struct sim_file *)file;

    *out_node = sim_file->node;
    if (st == STATUS_OK && sim_file->incarnation != ((struct fs_sim *)fs)->incarnation) {
        st = FAIL(STATUS_IO, "cannot %s '%s': it was opened before the crash", what, file->path);
    }
    return st;
}

static enum status open_node(struct fs_sim *sim, const char *path, enum fs_open_mode mode,
                             struct node **out_node)
{
    char name[FS_NAME_MAX];
    struct node *directory = fs_sim_walk(sim, path, name);
    struct node **there = directory != NULL ? fs_sim_find_name(&directory->names_now, name) : NULL;

    if (directory == NULL || (there == NULL && (mode == FS_READ || mode == FS_UPDATE))) {
        return FAIL(STATUS_NOT_FOUND, "cannot open '%s': not found", path);
    }
    if (there != NULL && mode == FS_CREATE_NEW) {
        return FAIL(STATUS_EXISTS, "cannot create '%s': it exists", path);
    }
    if (there != NULL && (*there)->is_directory) {
        return FAIL(STATUS_IO, "cannot open '%s': it is a folder", path);
    }
    if (there == NULL) {
        *out_node = fs_sim_make_node(sim, false);
        fs_sim_change_names(sim, *out_node, NULL, NULL, directory, name);
        note(sim, "create %s", path);
        return STATUS_OK;
    }
    *out_node = *there;
    if (mode == FS_CREATE) {
        struct node *node = *there;

        fs_sim_resize(&node->now, 0);
        node->writes = fs_sim_grow(node->writes, node->write_count, sizeof *node->writes);
        node->writes[node->write_count++] = (struct write){.is_truncate = true};
    }
    return STATUS_OK;
}

static enum status sim_open(struct fs *fs, const char *path, enum fs_open_mode mode,
                            struct fs_file **out_file)
{
    struct fs_sim *sim = (struct fs_sim *)fs;
    struct node *node = NULL;
    enum status st = enter(fs, "open", path);

    if (st == STATUS_OK) {
        st = open_node(sim, path, mode, &node);
    }
    if (st == STATUS_OK) {
        struct sim_file *file = calloc(1, sizeof *file);

        CHECK(file != NULL);
        file->base.fs = fs;
        file->base.path = fs_sim_copy_text(path);
        file->node = node;
        file->incarnation = sim->incarnation;
        file->writable = mode != FS_READ;
        *out_file = &file->base;
    }
    leave(fs);
    return st;
}

static void sim_close(struct fs *fs, struct fs_file *file)
{
    (void)fs;
    free(file->path);
    free(file);
}

static enum status sim_pread(struct fs *fs, struct fs_file *file, void *buffer, size_t bytes,
                             uint64_t offset, size_t *out_read)
{
    struct node *node;
    enum status st = enter_file(fs, "read", file, &node);

    if (st == STATUS_OK) {
        size_t left = offset < node->now.count ? node->now.count - (size_t)offset : 0;

        *out_read = bytes < left ? bytes : left;
        if (*out_read > 0) {
            memcpy(buffer, node->now.at + offset, *out_read);
        }
    }
    leave(fs);
    return st;
}

static void add_write(struct node *node, uint64_t offset, const void *buffer, size_t bytes)
{
    fs_sim_put(&node->now, offset, buffer, bytes);
    node->writes = fs_sim_grow(node->writes, node->write_count, sizeof *node->writes);
    node->writes[node->write_count++] =
        (struct write){.offset = offset, .bytes = fs_sim_copy_bytes(buffer, bytes)};
}

static enum status sim_pwrite(struct fs *fs, struct fs_file *file, const void *buffer, size_t bytes,
                              uint64_t offset)
{
    struct fs_sim *sim = (struct fs_sim *)fs;
    struct node *node;
    enum status st = enter_file(fs, "write", file, &node);

    CHECK(((struct sim_file *)file)->writable);
    if (st == STATUS_OK) {
        add_write(node, offset, buffer, bytes);
        note(sim, "write %s", file->path);
    } else if (!sim->dead && ((struct sim_file *)file)->incarnation == sim->incarnation) {
        add_write(node, offset, buffer, bytes / 2);
    }
    leave(fs);
    return st;
}

static enum status sim_truncate(struct fs *fs, struct fs_file *file, uint64_t bytes)
{
    struct node *node;
    enum status st = enter_file(fs, "truncate", file, &node);

    if (st == STATUS_OK) {
        fs_sim_resize(&node->now, bytes);
        node->writes = fs_sim_grow(node->writes, node->write_count, sizeof *node->writes);
        node->writes[node->write_count++] = (struct write){.is_truncate = true, .offset = bytes};
        note((struct fs_sim *)fs, "truncate %s", file->path);
    }
    leave(fs);
    return st;
}

static enum status sim_reserve(struct fs *fs, struct fs_file *file, uint64_t bytes)
{
    struct node *node;
    enum status st = enter_file(fs, "reserve", file, &node);

    if (st == STATUS_OK && bytes > node->now.count) {
        fs_sim_resize(&node->now, bytes);
        node->writes = fs_sim_grow(node->writes, node->write_count, sizeof *node->writes);
        node->writes[node->write_count++] = (struct write){.is_truncate = true, .offset = bytes};
        note((struct fs_sim *)fs, "reserve %s", file->path);
    }
    leave(fs);
    return st;
}

static enum status sim_sync(struct fs *fs, struct fs_file *file)
{
    struct node *node;
    enum status st = enter_file(fs, "sync", file, &node);

    if (st == STATUS_OK) {
        free(node->durable.at);
        node->durable = fs_sim_copy_bytes(node->now.at, node->now.count);
        fs_sim_forget_writes(node);
        note((struct fs_sim *)fs, "sync %s", file->path);
    }
    leave(fs);
    return st;
}

static enum status sim_file_size(struct fs *fs, struct fs_file *file, uint64_t *out_bytes)
{
    struct node *node;
    enum status st = enter_file(fs, "look at", file, &node);

    *out_bytes = node->now.count;
    leave(fs);
    return st;
}

static enum status sim_drop_cache(struct fs *fs, struct fs_file *file)
{
    struct node *node;
    enum status st = enter_file(fs, "drop", file, &node);

    leave(fs);
    return st;
}

/* Whether `node` may take the name that `there` has. */
static enum status check_replace(const struct node *node, const struct node *there,
                                 const char *path)
{
    if (there == NULL || there == node) {
        return STATUS_OK;
    }
    if (there->is_directory != node->is_directory || there->names_now.count > 0) {
        return FAIL(STATUS_EXISTS, "cannot rename to '%s': it exists", path);
    }
    return STATUS_OK;
}

static enum status rename_node(struct fs_sim *sim, const char *from, const char *to)
{
    enum status st = STATUS_OK;
    char from_name[FS_NAME_MAX], to_name[FS_NAME_MAX];
    struct node *from_directory = fs_sim_walk(sim, from, from_name);
    struct node *to_directory = fs_sim_walk(sim, to, to_name);
    struct node **source =
        from_directory != NULL ? fs_sim_find_name(&from_directory->names_now, from_name) : NULL;

    if (source == NULL || to_directory == NULL) {
        return FAIL(STATUS_NOT_FOUND, "cannot rename '%s' to '%s': not found", from, to);
    }
    struct node *node = *source;
    struct node **there = fs_sim_find_name(&to_directory->names_now, to_name);
    TRY(st, check_replace(node, there != NULL ? *there : NULL, to), done);
    fs_sim_change_names(sim, node, from_directory, from_name, to_directory, to_name);
    note(sim, "rename %s %s", from, to);
done:
    return st;
}

static enum status sim_rename(struct fs *fs, const char *from, const char *to)
{
    enum status st = enter(fs, "rename", from);

    if (st == STATUS_OK) {
        st = rename_node((struct fs_sim *)fs, from, to);
    }
    leave(fs);
    return st;
}

static enum status remove_node(struct fs_sim *sim, const char *path, bool is_directory)
{
    char name[FS_NAME_MAX];
    struct node *directory = fs_sim_walk(sim, path, name);
    struct node **there = directory != NULL ? fs_sim_find_name(&directory->names_now, name) : NULL;

    if (there == NULL) {
        return FAIL(STATUS_NOT_FOUND, "cannot remove '%s': not found", path);
    }
    if ((*there)->is_directory != is_directory) {
        return FAIL(STATUS_IO, "cannot remove '%s': it is another kind of thing", path);
    }
    if ((*there)->names_now.count > 0) {
        return FAIL(STATUS_EXISTS, "cannot remove '%s': it is not empty", path);
    }
    fs_sim_change_names(sim, *there, directory, name, NULL, NULL);
    note(sim, "%s %s", is_directory ? "rmdir" : "unlink", path);
    return STATUS_OK;
}

static enum status sim_unlink(struct fs *fs, const char *path)
{
    enum status st = enter(fs, "remove", path);

    if (st == STATUS_OK) {
        st = remove_node((struct fs_sim *)fs, path, false);
    }
    leave(fs);
    return st;
}

static enum status sim_rmdir(struct fs *fs, const char *path)
{
    enum status st = enter(fs, "remove", path);

    if (st == STATUS_OK) {
        st = remove_node((struct fs_sim *)fs, path, true);
    }
    leave(fs);
    return st;
}

static enum status make_directory(struct fs_sim *sim, const char *path)
{
    char name[FS_NAME_MAX];
    struct node *directory = fs_sim_walk(sim, path, name);

    if (directory == NULL) {
        return fs_sim_walk(sim, path, NULL) == sim->root
                   ? FAIL(STATUS_EXISTS, "'/' is there")
                   : FAIL(STATUS_NOT_FOUND, "cannot make folder '%s': not found", path);
    }
    if (fs_sim_find_name(&directory->names_now, name) != NULL) {
        return FAIL(STATUS_EXISTS, "cannot make folder '%s': it exists", path);
    }
    fs_sim_change_names(sim, fs_sim_make_node(sim, true), NULL, NULL, directory, name);
    note(sim, "mkdir %s", path);
    return STATUS_OK;
}

static enum status sim_mkdir(struct fs *fs, const char *path)
{
    enum status st = enter(fs, "make", path);

    if (st == STATUS_OK) {
        st = make_directory((struct fs_sim *)fs, path);
    }
    leave(fs);
    return st;
}

/* Finds a directory (or with `any` whatever it is) for the calls below. */
static enum status find_node(struct fs *fs, const char *path, bool any, struct node **out_node)
{
    *out_node = fs_sim_walk((struct fs_sim *)fs, path, NULL);
    if (*out_node == NULL || (!any && !(*out_node)->is_directory)) {
        return FAIL(STATUS_NOT_FOUND, "cannot look at '%s': not found", path);
    }
    return STATUS_OK;
}

static enum status sim_sync_dir(struct fs *fs, const char *path)
{
    struct node *node;
    enum status st = enter(fs, "sync", path);

    if (st == STATUS_OK) {
        st = find_node(fs, path, false, &node);
    }
    if (st == STATUS_OK) {
        fs_sim_sync_names((struct fs_sim *)fs, node);
        note((struct fs_sim *)fs, "sync_dir %s", path);
    }
    leave(fs);
    return st;
}

static enum status sim_stat(struct fs *fs, const char *path, struct fs_stat *out_stat)
{
    struct node *node;
    enum status st = enter(fs, "look at", path);

    if (st == STATUS_OK) {
        st = find_node(fs, path, true, &node);
    }
    if (st == STATUS_OK) {
        *out_stat = (struct fs_stat){.is_directory = node->is_directory,
                                     .size = node->now.count,
                                     .device = 1,
                                     .inode = node->id};
    }
    leave(fs);
    return st;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum status copy_names(const struct entries *entries, struct fs_names *names)
{
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&names->names, entries->count, sizeof *names->names), done);
    for (; names->count < entries->count; names->count++) {
        TRY(st, mem_copy_string(&names->names[names->count], entries->at[names->count].name), done);
    }
    if (names->count > 1) {
        qsort(names->names, names->count, sizeof *names->names, compare_texts);
    }
done:
    if (st != STATUS_OK) {
        fs_names_deinit(names);
    }
    return st;
}

static enum status sim_list(struct fs *fs, const char *path, struct fs_names *out_names)
{
    struct node *node;
    enum status st = enter(fs, "list", path);

    if (st == STATUS_OK) {
        st = find_node(fs, path, false, &node);
    }
    if (st == STATUS_OK) {
        st = copy_names(&node->names_now, out_names);
    }
    leave(fs);
    return st;
}

static enum status sim_space(struct fs *fs, const char *path, struct fs_space *out_space)
{
    enum status st = enter(fs, "ask for the space of", path);

    *out_space = (struct fs_space){UINT64_C(1) << 40, UINT64_C(1) << 39};
    leave(fs);
    return st;
}

static const struct fs_ops sim_ops = {
    .open = sim_open,
    .close = sim_close,
    .pread = sim_pread,
    .pwrite = sim_pwrite,
    .reserve = sim_reserve,
    .truncate = sim_truncate,
    .sync = sim_sync,
    .file_size = sim_file_size,
    .drop_cache = sim_drop_cache,
    .rename = sim_rename,
    .unlink = sim_unlink,
    .mkdir = sim_mkdir,
    .rmdir = sim_rmdir,
    .sync_dir = sim_sync_dir,
    .stat = sim_stat,
    .list = sim_list,
    .space = sim_space,
};

/* ---- the machine ---- */

struct fs_sim *fs_sim_create(void)
{
    struct fs_sim *sim = calloc(1, sizeof *sim);

    CHECK(sim != NULL && pthread_mutex_init(&sim->mutex, NULL) == 0);
    sim->fs.ops = &sim_ops;
    sim->root = fs_sim_make_node(sim, true);
    return sim;
}

void fs_sim_destroy(struct fs_sim *sim)
{
    fs_sim_settle_journal(sim, true);
    free(sim->journal);
    while (sim->nodes != NULL) {
        struct node *node = sim->nodes;

        sim->nodes = node->next;
        fs_sim_forget_writes(node);
        fs_sim_clear_names(&node->names_now);
        fs_sim_clear_names(&node->names_durable);
        free(node->writes);
        free(node->now.at);
        free(node->durable.at);
        free(node);
    }
    for (int i = 0; i < sim->log_count; i++) {
        free(sim->log[i]);
    }
    free(sim->log);
    (void)pthread_mutex_destroy(&sim->mutex);
    free(sim);
}

struct fs *fs_sim_fs(struct fs_sim *sim)
{
    return &sim->fs;
}

uint64_t fs_sim_calls(struct fs_sim *sim)
{
    (void)pthread_mutex_lock(&sim->mutex);
    uint64_t calls = sim->calls;
    (void)pthread_mutex_unlock(&sim->mutex);
    return calls;
}

void fs_sim_fail_at(struct fs_sim *sim, uint64_t n, enum status code)
{
    (void)pthread_mutex_lock(&sim->mutex);
    sim->fail_at = n > 0 ? sim->calls + n : 0;
    sim->fail_code = code;
    (void)pthread_mutex_unlock(&sim->mutex);
}

void fs_sim_cut_at(struct fs_sim *sim, uint64_t n)
{
    (void)pthread_mutex_lock(&sim->mutex);
    sim->cut_at = n > 0 ? sim->calls + n : 0;
    (void)pthread_mutex_unlock(&sim->mutex);
}

int fs_sim_find_call(struct fs_sim *sim, int from, const char *prefix)
{
    int found = -1;

    (void)pthread_mutex_lock(&sim->mutex);
    for (int i = from; i < sim->log_count && found < 0; i++) {
        if (strncmp(sim->log[i], prefix, strlen(prefix)) == 0) {
            found = i;
        }
    }
    (void)pthread_mutex_unlock(&sim->mutex);
    return found;
}
