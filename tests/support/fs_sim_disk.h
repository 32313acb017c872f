/* The state of the simulated disk, between fs_sim_disk.c, which keeps it and crashes it, and
 * fs_sim.c, which makes a struct fs of it. Everything here is called under the mutex.
 */
#ifndef TESTS_SUPPORT_FS_SIM_DISK_H
#define TESTS_SUPPORT_FS_SIM_DISK_H

#include <pthread.h>

#include "tests/support/fs_sim.h"

struct bytes {
    char *at;
    size_t count;
};

struct write {
    bool is_truncate;
    uint64_t offset; /* of a truncate: the new size */
    struct bytes bytes;
};

struct entry {
    char *name;
    struct node *node;
};

struct entries {
    struct entry *at;
    size_t count;
};

struct node {
    bool is_directory;
    uint64_t id;
    struct bytes now, durable;
    struct write *writes;
    size_t write_count;
    struct entries names_now, names_durable;
    struct node *next;
};

/* Takes `node` from one name and/or gives it another; a NULL directory: not this half. */
struct name_op {
    struct node *node;
    struct node *from, *to;
    char *from_name, *to_name;
    bool settled; /* while a sync or crash decides: this one survives */
};

struct fs_sim {
    struct fs fs;
    pthread_mutex_t mutex;
    struct node *nodes, *root;
    uint64_t node_count, calls, fail_at, cut_at, incarnation;
    enum status fail_code;
    bool dead;
    struct name_op *journal;
    size_t journal_count;
    char **log;
    int log_count;
};

/* Memory; when there is none the process ends. fs_sim_grow makes room for count + 1 elements. */
void *fs_sim_grow(void *array, size_t count, size_t size);
char *fs_sim_copy_text(const char *text);
struct bytes fs_sim_copy_bytes(const void *from, size_t count);
void fs_sim_resize(struct bytes *bytes, size_t count); /* new bytes are 0 */
void fs_sim_put(struct bytes *bytes, uint64_t offset, const void *from, size_t count);

/* Where the node of a name stands, or NULL. */
struct node **fs_sim_find_name(struct entries *entries, const char *name);
void fs_sim_clear_names(struct entries *entries);
struct node *fs_sim_make_node(struct fs_sim *sim, bool is_directory);
/* Walks to `path`; NULL when it is not there. With out_last the last component is not walked but
 * copied there, and the directory that holds it is the result. */
struct node *fs_sim_walk(struct fs_sim *sim, const char *path, char out_last[FS_NAME_MAX]);

/* Takes `node` from one name and gives it another (either directory may be NULL), at once for
 * processes and in the journal for the disk. */
void fs_sim_change_names(struct fs_sim *sim, struct node *node, struct node *from,
                         const char *from_name, struct node *to, const char *to_name);
/* Makes durable what the journal holds of a directory, and whatever that rests on. */
void fs_sim_sync_names(struct fs_sim *sim, const struct node *directory);
/* Applies the settled operations to the durable names and forgets them; with `all` the rest too. */
void fs_sim_settle_journal(struct fs_sim *sim, bool all);
void fs_sim_forget_writes(struct node *node);

#endif
