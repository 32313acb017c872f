/* The list of stores, and what is the same for all of them; see store.h. */
#include "backup/store.h"

#include <ctype.h>
#include <string.h>

#include "backup/store_dir.h"
#include "backup/store_s3.h"
#include "ckpt/base/mem.h"

/* The only list of implementations. A plain path is a directory. */
static const struct {
    const char *scheme;
    enum status (*open)(const char *where, int create, const struct store_options *options,
                        struct store **out_store);
} kinds[] = {
    {"dir:", store_dir_open},
    {"s3://", store_s3_open},
};

enum status store_open(const char *where, int create, const struct store_options *options,
                       struct store **out_store)
{
    static const struct store_options none = {NULL, NULL, NULL, NULL};
    const char *colon = strstr(where, "://");

    *out_store = NULL;
    options = options != NULL ? options : &none;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i].scheme);
        if (strncmp(where, kinds[i].scheme, length) == 0) {
            return kinds[i].open(where + length, create, options, out_store);
        }
    }
    if (colon != NULL && strchr(where, '/') > where && strchr(where, '/') == colon + 1) {
        return FAIL(STATUS_UNSUPPORTED,
                    "no store for '%s'; give s3://BUCKET/PREFIX, or a folder: PATH or dir:PATH",
                    where);
    }
    return store_dir_open(where, create, options, out_store);
}

void store_close(struct store **store)
{
    if (*store != NULL) {
        (*store)->ops->close(*store);
        *store = NULL;
    }
}

enum status store_check_name(const char *name)
{
    size_t length = strlen(name);
    const char *part = name;

    if (length == 0 || length >= STORE_NAME_MAX) {
        return FAIL(STATUS_USAGE, "object name '%.100s' has %zu bytes, 1 to %d are possible", name,
                    length, STORE_NAME_MAX - 1);
    }
    for (const char *at = name;; at++) {
        if (*at != '/' && *at != '\0') {
            if (iscntrl((unsigned char)*at)) {
                return FAIL(STATUS_USAGE, "an object name holds a control character");
            }
            continue;
        }
        size_t size = (size_t)(at - part);
        if (size == 0 || (size == 1 && part[0] == '.') ||
            (size == 2 && part[0] == '.' && part[1] == '.')) {
            return FAIL(STATUS_USAGE, "object name '%s' has an empty, '.' or '..' part", name);
        }
        if (*at == '\0') {
            return STATUS_OK;
        }
        part = at + 1;
    }
}

enum status store_put(struct store *store, const char *name, const struct store_source *source)
{
    enum status st = STATUS_OK;

    TRY(st, store_check_name(name), done);
    TRY(st, store->ops->put(store, name, source), done);
done:
    return st;
}

static enum status read_bytes(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    memcpy(buffer, (const char *)context + offset, bytes);
    return STATUS_OK;
}

enum status store_put_bytes(struct store *store, const char *name, const void *bytes, size_t count)
{
    struct store_source source = {(void *)bytes, count, read_bytes};

    return store_put(store, name, &source);
}

enum status store_get(struct store *store, const char *name, void *buffer, size_t bytes,
                      uint64_t offset)
{
    enum status st = STATUS_OK;

    CHECK(bytes <= STORE_GET_BYTES_MAX);
    TRY(st, store_check_name(name), done);
    TRY(st, store->ops->get(store, name, buffer, bytes, offset), done);
done:
    return st;
}

enum status store_get_all(struct store *store, const char *name, size_t bytes_max, char **out_bytes,
                          size_t *out_count)
{
    enum status st = STATUS_OK;
    uint64_t size = 0;

    *out_bytes = NULL;
    *out_count = 0;
    TRY(st, store_stat(store, name, &size), done);
    if (size > bytes_max) {
        return FAIL(STATUS_CORRUPT, "object '%s' has %llu bytes, at most %zu are expected", name,
                    (unsigned long long)size, bytes_max);
    }
    TRY(st, mem_alloc(out_bytes, (size_t)size + 1, 1), done);
    for (size_t at = 0; at < size; at += STORE_GET_BYTES_MAX) {
        size_t left = (size_t)size - at;
        size_t now = left < STORE_GET_BYTES_MAX ? left : STORE_GET_BYTES_MAX;
        TRY(st, store_get(store, name, *out_bytes + at, now, at), done);
    }
    *out_count = (size_t)size;
done:
    if (st != STATUS_OK) {
        mem_free(out_bytes);
    }
    return st;
}

enum status store_stat(struct store *store, const char *name, uint64_t *out_bytes)
{
    enum status st = STATUS_OK;

    TRY(st, store_check_name(name), done);
    TRY(st, store->ops->stat(store, name, out_bytes), done);
done:
    return st;
}

enum status store_list(struct store *store, const char *prefix, struct store_list *out_list)
{
    *out_list = (struct store_list){NULL, 0};
    return store->ops->list(store, prefix, out_list);
}

void store_list_deinit(struct store_list *list)
{
    mem_free(&list->objects);
    list->count = 0;
}

enum status store_remove(struct store *store, const char *name)
{
    enum status st = STATUS_OK;

    TRY(st, store_check_name(name), done);
    TRY(st, store->ops->remove(store, name), done);
done:
    return st;
}

enum status store_clean(struct store *store)
{
    return store->ops->clean(store);
}
