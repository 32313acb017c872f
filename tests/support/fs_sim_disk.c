/* The simulated disk: what is there now, what is durable, and the crash in between; see fs_sim.h.
 *
 * Each file has its bytes now, its durable bytes, and the writes in between; each directory its
 * entries now and its durable entries; one journal for all holds the name operations in between.
 * A crash applies a subset of both to the durable state, which then is the state.
 * Nodes live until fs_sim_destroy: an open file may outlive its name.
 */
#include "tests/support/fs_sim_disk.h"

#include <stdlib.h>
#include <string.h>

void *fs_sim_grow(void *array, size_t count, size_t size)
{
    void *grown = realloc(array, (count + 1) * size);

    CHECK(grown != NULL);
    return grown;
}

char *fs_sim_copy_text(const char *text)
{
    char *copy = strdup(text);

    CHECK(copy != NULL);
    return copy;
}

struct bytes fs_sim_copy_bytes(const void *from, size_t count)
{
    struct bytes bytes = {fs_sim_grow(NULL, count, 1), count};

    if (count > 0) {
        memcpy(bytes.at, from, count);
    }
    return bytes;
}

void fs_sim_resize(struct bytes *bytes, size_t count)
{
    bytes->at = fs_sim_grow(bytes->at, count, 1);
    if (count > bytes->count) {
        memset(bytes->at + bytes->count, 0, count - bytes->count);
    }
    bytes->count = count;
}

void fs_sim_put(struct bytes *bytes, uint64_t offset, const void *from, size_t count)
{
    if (offset + count > bytes->count) {
        fs_sim_resize(bytes, offset + count);
    }
    if (count > 0) {
        memcpy(bytes->at + offset, from, count);
    }
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ULL;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

/* ---- names ---- */

struct node **fs_sim_find_name(struct entries *entries, const char *name)
{
    for (size_t i = 0; i < entries->count; i++) {
        if (strcmp(entries->at[i].name, name) == 0) {
            return &entries->at[i].node;
        }
    }
    return NULL;
}

static void erase_name(struct entries *entries, const char *name)
{
    for (size_t i = 0; i < entries->count; i++) {
        if (strcmp(entries->at[i].name, name) == 0) {
            free(entries->at[i].name);
            entries->at[i] = entries->at[--entries->count];
            return;
        }
    }
}

static void set_name(struct entries *entries, const char *name, struct node *node)
{
    struct node **there = fs_sim_find_name(entries, name);

    if (there != NULL) {
        *there = node;
        return;
    }
    entries->at = fs_sim_grow(entries->at, entries->count, sizeof *entries->at);
    entries->at[entries->count++] = (struct entry){fs_sim_copy_text(name), node};
}

void fs_sim_clear_names(struct entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) {
        free(entries->at[i].name);
    }
    free(entries->at);
    *entries = (struct entries){NULL, 0};
}

struct node *fs_sim_make_node(struct fs_sim *sim, bool is_directory)
{
    struct node *node = calloc(1, sizeof *node);

    CHECK(node != NULL);
    node->is_directory = is_directory;
    node->id = ++sim->node_count;
    node->next = sim->nodes;
    sim->nodes = node;
    return node;
}

/* Walks to `path`; NULL when it is not there. With out_last the last component stays unwalked. */
struct node *fs_sim_walk(struct fs_sim *sim, const char *path, char out_last[FS_NAME_MAX])
{
    struct node *node = sim->root;
    char name[FS_NAME_MAX];

    for (;;) {
        path += strspn(path, "/");
        size_t length = strcspn(path, "/");
        if (length == 0) {
            return out_last == NULL ? node : NULL;
        }
        CHECK(length < sizeof name);
        memcpy(name, path, length);
        name[length] = '\0';
        path += length;
        if (out_last != NULL && path[strspn(path, "/")] == '\0') {
            memcpy(out_last, name, length + 1);
            return node->is_directory ? node : NULL;
        }
        if (strcmp(name, ".") == 0) {
            continue;
        }
        struct node **next = node->is_directory ? fs_sim_find_name(&node->names_now, name) : NULL;
        if (next == NULL) {
            return NULL;
        }
        node = *next;
    }
}

static void apply(const struct name_op *op, bool durable)
{
    if (op->from != NULL) {
        erase_name(durable ? &op->from->names_durable : &op->from->names_now, op->from_name);
    }
    if (op->to != NULL) {
        set_name(durable ? &op->to->names_durable : &op->to->names_now, op->to_name, op->node);
    }
}

void fs_sim_change_names(struct fs_sim *sim, struct node *node, struct node *from,
                         const char *from_name, struct node *to, const char *to_name)
{
    struct name_op op = {.node = node, .from = from, .to = to};

    op.from_name = from != NULL ? fs_sim_copy_text(from_name) : NULL;
    op.to_name = to != NULL ? fs_sim_copy_text(to_name) : NULL;
    apply(&op, false);
    sim->journal = fs_sim_grow(sim->journal, sim->journal_count, sizeof op);
    sim->journal[sim->journal_count++] = op;
}

static bool same_name(const struct node *a, const char *a_name, const struct node *b,
                      const char *b_name)
{
    return a != NULL && a == b && strcmp(a_name, b_name) == 0;
}

static bool depends(const struct name_op *later, const struct name_op *earlier)
{
    return later->node == earlier->node ||
           same_name(later->from, later->from_name, earlier->from, earlier->from_name) ||
           same_name(later->from, later->from_name, earlier->to, earlier->to_name) ||
           same_name(later->to, later->to_name, earlier->from, earlier->from_name) ||
           same_name(later->to, later->to_name, earlier->to, earlier->to_name);
}

/* Applies the settled operations in order and forgets them; with `all`, forgets the others too. */
void fs_sim_settle_journal(struct fs_sim *sim, bool all)
{
    size_t left = 0;

    for (size_t i = 0; i < sim->journal_count; i++) {
        struct name_op *op = &sim->journal[i];

        if (op->settled) {
            apply(op, true);
        }
        if (op->settled || all) {
            free(op->from_name);
            free(op->to_name);
        } else {
            sim->journal[left++] = *op;
        }
    }
    sim->journal_count = left;
}

void fs_sim_sync_names(struct fs_sim *sim, const struct node *directory)
{
    for (size_t i = sim->journal_count; i-- > 0;) {
        struct name_op *op = &sim->journal[i];

        op->settled = op->settled || op->from == directory || op->to == directory;
        for (size_t j = 0; j < i && op->settled; j++) {
            sim->journal[j].settled = sim->journal[j].settled || depends(op, &sim->journal[j]);
        }
    }
    fs_sim_settle_journal(sim, false);
}

/* ---- the crash ---- */

static void crash_write(struct node *node, const struct write *write, uint64_t *random)
{
    size_t count = write->bytes.count;

    if (write->is_truncate) {
        if (next_random(random) % 2 == 0) {
            fs_sim_resize(&node->durable, write->offset);
        }
        return;
    }
    switch (next_random(random) % 4) {
    case 0: /* all */
        fs_sim_put(&node->durable, write->offset, write->bytes.at, count);
        break;
    case 1: /* a part */
        fs_sim_put(&node->durable, write->offset, write->bytes.at,
                   next_random(random) % (count + 1));
        break;
    case 2: /* only its size */
        if (write->offset + count > node->durable.count) {
            fs_sim_resize(&node->durable, write->offset + count);
        }
        break;
    default: /* nothing */
        break;
    }
}

void fs_sim_forget_writes(struct node *node)
{
    for (size_t i = 0; i < node->write_count; i++) {
        free(node->writes[i].bytes.at);
    }
    node->write_count = 0;
}

void fs_sim_crash(struct fs_sim *sim, uint64_t seed)
{
    uint64_t random = seed;

    (void)pthread_mutex_lock(&sim->mutex);
    for (size_t i = 0; i < sim->journal_count; i++) {
        struct name_op *op = &sim->journal[i];

        op->settled = next_random(&random) % 2 == 0;
        for (size_t j = 0; j < i && op->settled; j++) {
            op->settled = sim->journal[j].settled || !depends(op, &sim->journal[j]);
        }
    }
    fs_sim_settle_journal(sim, true);
    for (struct node *node = sim->nodes; node != NULL; node = node->next) {
        for (size_t i = 0; i < node->write_count; i++) {
            crash_write(node, &node->writes[i], &random);
        }
        fs_sim_forget_writes(node);
        free(node->now.at);
        node->now = fs_sim_copy_bytes(node->durable.at, node->durable.count);
        fs_sim_clear_names(&node->names_now);
        for (size_t i = 0; i < node->names_durable.count; i++) {
            set_name(&node->names_now, node->names_durable.at[i].name,
                     node->names_durable.at[i].node);
        }
    }
    sim->incarnation++;
    sim->dead = false;
    sim->fail_at = sim->cut_at = 0;
    (void)pthread_mutex_unlock(&sim->mutex);
}
