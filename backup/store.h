/* An object store as a vtable: flat names, whole objects, nothing visible before it is complete.
 *
 * Before it: transfer (what to copy, hashes). After it: the implementations, a directory
 * (store_dir.c) and a bucket of an S3 server (store_s3.c). Names are relative paths of printable
 * characters, components separated by '/', none empty, "." or ".." (STATUS_USAGE), at most
 * STORE_NAME_MAX bytes. An object is replaced as a whole: readers see the old or the new content,
 * also when the writer is killed.
 * Statuses: NOT_FOUND, NO_PERMISSION, NO_SPACE; IO and TIMEOUT for what may go better the next
 * time (status_retry_class).
 * Threads: put, get, stat and remove may be called by several threads at once.
 */
#ifndef BACKUP_STORE_H
#define BACKUP_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define STORE_NAME_MAX 512
#define STORE_GET_BYTES_MAX ((size_t)16 << 20)

/* Where a put takes its bytes from; asked for each range at least once, in any order. */
struct store_source {
    void *context;
    uint64_t bytes;
    enum status (*read)(void *context, void *buffer, size_t bytes, uint64_t offset);
};

struct store_object {
    char name[STORE_NAME_MAX];
    uint64_t bytes;
};

struct store_list {
    struct store_object *objects; /* sorted by name */
    size_t count;
};

struct store {
    const struct store_ops *ops;
};

struct store_ops {
    void (*close)(struct store *store);
    enum status (*put)(struct store *store, const char *name, const struct store_source *source);
    /* Fills `buffer`; a range that is not wholly inside the object is STATUS_CORRUPT. At most
     * STORE_GET_BYTES_MAX. */
    enum status (*get)(struct store *store, const char *name, void *buffer, size_t bytes,
                       uint64_t offset);
    enum status (*stat)(struct store *store, const char *name, uint64_t *out_bytes);
    /* Every complete object whose name begins with `prefix`; uploads under way are not listed. */
    enum status (*list)(struct store *store, const char *prefix, struct store_list *out_list);
    /* STATUS_OK when there is no such object. */
    enum status (*remove)(struct store *store, const char *name);
    /* Removes what killed uploads of this host left; never one that still runs. */
    enum status (*clean)(struct store *store);
};

/* How to reach a store; NULL or "" (also for all of it): as the environment says. A directory needs
 * none of it. */
struct store_options {
    const char *endpoint_url; /* of another S3 server than Amazon's */
    const char *region;
    const char *profile; /* in ~/.aws */
    const char *ca_file; /* trusted authorities, PEM */
};

/* `where` is "s3://BUCKET/PREFIX", "dir:PATH" or a plain path. STATUS_UNSUPPORTED lists the kinds
 * of store there are. `create`: makes it when it is missing, else STATUS_NOT_FOUND (a bucket is
 * never made). */
enum status store_open(const char *where, int create, const struct store_options *options,
                       struct store **out_store) STATUS_MUST_CHECK;
/* STATUS_USAGE: no name of an object. For implementations. */
enum status store_check_name(const char *name) STATUS_MUST_CHECK;
void store_close(struct store **store); /* takes NULL inside, leaves NULL */

enum status store_put(struct store *store, const char *name, const struct store_source *source)
    STATUS_MUST_CHECK;
enum status store_put_bytes(struct store *store, const char *name, const void *bytes, size_t count)
    STATUS_MUST_CHECK;
enum status store_get(struct store *store, const char *name, void *buffer, size_t bytes,
                      uint64_t offset) STATUS_MUST_CHECK;
/* A whole small object with a 0 byte behind it, freed by mem_free; more than bytes_max is
 * STATUS_CORRUPT. */
enum status store_get_all(struct store *store, const char *name, size_t bytes_max, char **out_bytes,
                          size_t *out_count) STATUS_MUST_CHECK;
enum status store_stat(struct store *store, const char *name, uint64_t *out_bytes)
    STATUS_MUST_CHECK;
enum status store_list(struct store *store, const char *prefix, struct store_list *out_list)
    STATUS_MUST_CHECK;
void store_list_deinit(struct store_list *list);
enum status store_remove(struct store *store, const char *name) STATUS_MUST_CHECK;
enum status store_clean(struct store *store) STATUS_MUST_CHECK;

#endif
