/* The S3 store; see store_s3.h and store.h.
 *
 * Ranges of one object are read with If-Match of the ETag that its stat or its first range gave, so
 * that two versions are never mixed. Lists and ETags are the server's word: lengths, prefixes and
 * pagination are checked.
 */
#include "backup/store_s3.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backup/s3_client.h"
#include "backup/s3_journal.h"
#include "backup/s3_upload.h"
#include "backup/s3_xml.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/layout.h"

#define VERSION_COUNT 128     /* objects that are read at the same time, and some */
#define PAGE_TEXT "1000"      /* the most a server lists at once */
#define PAGE_COUNT_MAX 100000 /* a server that never ends is broken */
#define TOKEN_MAX 4096
#define ABANDONED_AGE_S 86400 /* an upload of an unknown host is dead after a day */

struct version {
    char name[STORE_NAME_MAX];
    char etag[S3_HTTP_FIELD_MAX]; /* "": free */
};

struct store_s3 {
    struct store base;
    struct s3_client *client;
    char prefix[S3_KEY_BYTES_MAX]; /* "a/b/", or "" */
    pthread_mutex_t mutex;         /* of what follows */
    struct version versions[VERSION_COUNT];
    size_t next_version;
};

static struct store_s3 *s3_of(struct store *store)
{
    return (struct store_s3 *)store;
}

static void s3_close(struct store *store)
{
    struct store_s3 *s3 = s3_of(store);

    s3_client_close(&s3->client);
    (void)pthread_mutex_destroy(&s3->mutex);
    mem_free(&s3);
}

static enum status make_key(const struct store_s3 *s3, const char *name,
                            char out_key[S3_KEY_BYTES_MAX + 1])
{
    int length = snprintf(out_key, S3_KEY_BYTES_MAX + 1, "%s%s", s3->prefix, name);

    return length <= S3_KEY_BYTES_MAX
               ? STATUS_OK
               : FAIL(STATUS_USAGE, "'%s%s' has more than the %d bytes of a key", s3->prefix, name,
                      S3_KEY_BYTES_MAX);
}

/* `etag` NULL: what was known is no longer true. Weak ETags tell nothing about bytes. */
static void set_version(struct store_s3 *s3, const char *name, const char *etag)
{
    struct version *version = NULL;

    (void)pthread_mutex_lock(&s3->mutex);
    for (size_t i = 0; version == NULL && i < VERSION_COUNT; i++) {
        version = strcmp(s3->versions[i].name, name) == 0 ? &s3->versions[i] : NULL;
    }
    if (version == NULL && etag != NULL) {
        version = &s3->versions[s3->next_version++ % VERSION_COUNT];
    }
    if (version != NULL) {
        bool strong = etag != NULL && etag[0] == '"';
        (void)snprintf(version->name, sizeof version->name, "%s", name);
        (void)snprintf(version->etag, sizeof version->etag, "%s", strong ? etag : "");
    }
    (void)pthread_mutex_unlock(&s3->mutex);
}

static void get_version(struct store_s3 *s3, const char *name, char out_etag[S3_HTTP_FIELD_MAX])
{
    out_etag[0] = '\0';
    (void)pthread_mutex_lock(&s3->mutex);
    for (size_t i = 0; i < VERSION_COUNT; i++) {
        if (strcmp(s3->versions[i].name, name) == 0) {
            memcpy(out_etag, s3->versions[i].etag, S3_HTTP_FIELD_MAX);
        }
    }
    (void)pthread_mutex_unlock(&s3->mutex);
}

static enum status s3_put(struct store *store, const char *name, const struct store_source *source)
{
    struct store_s3 *s3 = s3_of(store);
    enum status st = STATUS_OK;
    char key[S3_KEY_BYTES_MAX + 1];

    TRY(st, make_key(s3, name, key), done);
    set_version(s3, name, NULL);
    TRY(st, s3_upload_put(s3->client, key, source), done);
done:
    return st;
}

static enum status s3_stat(struct store *store, const char *name, uint64_t *out_bytes)
{
    struct store_s3 *s3 = s3_of(store);
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    char key[S3_KEY_BYTES_MAX + 1];
    struct s3_call call = {.method = "HEAD", .key = key};

    TRY(st, make_key(s3, name, key), done);
    TRY(st, s3_client_call(s3->client, &call, &reply), done);
    if (reply.answer.content_bytes < 0) {
        st = FAIL(STATUS_IO, "the server does not tell the size of '%s'", key);
        goto done;
    }
    set_version(s3, name, reply.answer.etag);
    *out_bytes = (uint64_t)reply.answer.content_bytes;
done:
    s3_reply_deinit(&reply);
    return st;
}

/* The Content-Range counts, whatever the code (rclone says 200); without one the answer is the
 * whole object, and the range must be, too. */
static enum status check_range(const struct s3_http_answer *answer, const char *key, size_t bytes,
                               uint64_t offset)
{
    unsigned long long first = 0, last = 0;
    bool ranged = answer->content_range[0] != '\0';

    if (ranged && (sscanf(answer->content_range, "bytes %llu-%llu/", &first, &last) != 2 ||
                   first != offset || last < first)) {
        return FAIL(STATUS_IO, "the server gives the range '%s' of '%s', not %llu-%llu",
                    answer->content_range, key, (unsigned long long)offset,
                    (unsigned long long)offset + bytes - 1);
    }
    if (!ranged && (answer->code == 206 || offset != 0)) {
        return FAIL(STATUS_UNSUPPORTED, "the server gives no ranges of '%s'", key);
    }
    if (ranged ? last - first + 1 < bytes : answer->into_count < bytes) {
        return FAIL(STATUS_CORRUPT, "object '%s' ends within the %zu bytes from %llu", key, bytes,
                    (unsigned long long)offset);
    }
    if (answer->into_count != bytes) {
        return FAIL(STATUS_IO, "the server sent %zu of %zu bytes of '%s'", answer->into_count,
                    bytes, key);
    }
    return STATUS_OK;
}

static enum status s3_get(struct store *store, const char *name, void *buffer, size_t bytes,
                          uint64_t offset)
{
    struct store_s3 *s3 = s3_of(store);
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    char key[S3_KEY_BYTES_MAX + 1], range[64], etag[S3_HTTP_FIELD_MAX];
    struct s3_call call = {
        .method = "GET",
        .key = key,
        .headers = {{"range", range}, {"if-match", etag}},
        .header_count = 1,
        .into = buffer,
        .into_bytes = bytes,
    };

    if (bytes == 0) {
        return STATUS_OK; /* no range can say so */
    }
    TRY(st, make_key(s3, name, key), done);
    (void)snprintf(range, sizeof range, "bytes=%llu-%llu", (unsigned long long)offset,
                   (unsigned long long)offset + bytes - 1);
    get_version(s3, name, etag);
    call.header_count += offset > 0 && etag[0] != '\0';
    TRY(st, s3_client_call(s3->client, &call, &reply), done);
    TRY(st, check_range(&reply.answer, key, bytes, offset), done);
    if (offset == 0) {
        set_version(s3, name, reply.answer.etag);
    }
done:
    s3_reply_deinit(&reply);
    return st;
}

static enum status s3_remove(struct store *store, const char *name)
{
    struct store_s3 *s3 = s3_of(store);
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    char key[S3_KEY_BYTES_MAX + 1];
    struct s3_call call = {.method = "DELETE", .key = key};

    TRY(st, make_key(s3, name, key), done);
    set_version(s3, name, NULL);
    st = s3_client_call(s3->client, &call, &reply);
    if (st == STATUS_NOT_FOUND && strcmp(reply.code, "NoSuchBucket") != 0) {
        st = STATUS_OK;
    }
    TRY(st, st, done);
done:
    s3_reply_deinit(&reply);
    return st;
}

/* One page of ListObjectsV2 or ListMultipartUploads, while it is parsed. */
struct page {
    struct store_s3 *s3;
    struct store_list *list; /* of objects */
    size_t *capacity;
    char key[S3_XML_TEXT_MAX], size[32];             /* of the entry under way */
    char upload_id[S3_UPLOAD_ID_MAX], initiated[64]; /* likewise */
    char token[TOKEN_MAX], next_key[S3_XML_TEXT_MAX], next_id[S3_UPLOAD_ID_MAX];
    bool is_truncated, is_encoded, has_root;
    const char *only_key; /* uploads: those of this key, or NULL: abandoned ones of any step */
};

static void keep(const char *text, char *out_text, size_t capacity)
{
    size_t length = strlen(text);

    out_text[0] = '\0';
    if (length < capacity) {
        memcpy(out_text, text, length + 1);
    }
}

static int hex_value(char digit)
{
    const char *digits = "0123456789abcdefABCDEF", *at = strchr(digits, digit);

    return digit == '\0' || at == NULL ? -1 : (int)(at - digits) - (at - digits > 15 ? 6 : 0);
}

/* What "encoding-type=url" asked for: %XX, and '+' for a space. In place. */
static void decode(char *text)
{
    char *to = text;

    for (const char *at = text; *at != '\0'; at++) {
        int high = *at == '%' ? hex_value(at[1]) : -1, low = high >= 0 ? hex_value(at[2]) : -1;
        if (low >= 0) {
            *to++ = (char)(high * 16 + low);
            at += 2;
        } else {
            *to++ = *at == '+' ? ' ' : *at;
        }
    }
    *to = '\0';
}

/* The name of a key in this store; NULL when it is none of its objects. */
static const char *name_of(const struct store_s3 *s3, const char *key)
{
    size_t length = strlen(s3->prefix), all = strlen(key);

    if (strncmp(key, s3->prefix, length) != 0 || all - length == 0 ||
        all - length >= STORE_NAME_MAX || key[all - 1] == '/') {
        return NULL; /* some consoles make an empty object "folder/" */
    }
    return key + length;
}

static enum status add_object(struct page *page)
{
    enum status st = STATUS_OK;
    struct store_list *list = page->list;
    char *end = NULL;

    if (page->is_encoded) {
        decode(page->key);
    }
    const char *name = name_of(page->s3, page->key);
    unsigned long long bytes = strtoull(page->size, &end, 10);
    if (end == page->size || *end != '\0') {
        return FAIL(STATUS_BAD_DATA, "the server lists '%s' with the size '%s'", page->key,
                    page->size);
    }
    if (name == NULL) {
        return STATUS_OK;
    }
    TRY(st,
        mem_grow((void **)&list->objects, page->capacity, list->count + 1, sizeof *list->objects),
        done);
    memcpy(list->objects[list->count].name, name, strlen(name) + 1);
    list->objects[list->count++].bytes = bytes;
done:
    return st;
}

static enum status on_object(void *context, const char *path, const char *text)
{
    struct page *page = context;

    if (strcmp(path, "ListBucketResult/Contents/Key") == 0) {
        keep(text, page->key, sizeof page->key);
    } else if (strcmp(path, "ListBucketResult/Contents/Size") == 0) {
        keep(text, page->size, sizeof page->size);
    } else if (strcmp(path, "ListBucketResult/Contents") == 0) {
        return add_object(page);
    } else if (strcmp(path, "ListBucketResult/IsTruncated") == 0) {
        page->is_truncated = strcmp(text, "true") == 0;
    } else if (strcmp(path, "ListBucketResult/NextContinuationToken") == 0) {
        keep(text, page->token, sizeof page->token);
    } else if (strcmp(path, "ListBucketResult") == 0) {
        page->has_root = true;
    }
    return STATUS_OK;
}

/* Where it stands in the document is the server's choice, so it is looked for before the keys. */
static bool is_encoded(const struct s3_http_answer *answer, const char *path)
{
    char text[16];

    s3_xml_find(answer->text, answer->text_count, path, text, sizeof text);
    return strcmp(text, "url") == 0;
}

static enum status list_page(struct page *page, const char *prefix)
{
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    char token[TOKEN_MAX];
    struct s3_call call = {
        .method = "GET",
        .params = {{"list-type", "2"},
                   {"max-keys", PAGE_TEXT},
                   {"encoding-type", "url"},
                   {"prefix", prefix},
                   {"continuation-token", token}},
        .param_count = page->token[0] != '\0' ? 5 : 4,
    };

    memcpy(token, page->token, sizeof token);
    page->token[0] = '\0';
    page->is_truncated = page->has_root = false;
    TRY(st, s3_client_call(page->s3->client, &call, &reply), done);
    page->is_encoded = is_encoded(&reply.answer, "ListBucketResult/EncodingType");
    TRY(st, s3_xml_walk(reply.answer.text, reply.answer.text_count, on_object, page), done);
    if (!page->has_root ||
        (page->is_truncated && (page->token[0] == '\0' || strcmp(page->token, token) == 0))) {
        st = FAIL(STATUS_IO, "the server's list does not tell how it goes on");
    }
done:
    s3_reply_deinit(&reply);
    return st;
}

static int compare_objects(const void *a, const void *b)
{
    return strcmp(((const struct store_object *)a)->name, ((const struct store_object *)b)->name);
}

static enum status s3_list(struct store *store, const char *prefix, struct store_list *out_list)
{
    struct store_s3 *s3 = s3_of(store);
    enum status st = STATUS_OK;
    struct page *page = NULL;
    size_t capacity = 0, pages = 0;
    char whole[S3_KEY_BYTES_MAX + 1];

    TRY(st, make_key(s3, prefix, whole), done);
    TRY(st, mem_alloc(&page, 1, sizeof *page), done);
    page->s3 = s3;
    page->list = out_list;
    page->capacity = &capacity;
    do {
        TRY(st, list_page(page, whole), done);
    } while (page->is_truncated && ++pages < PAGE_COUNT_MAX);
    if (out_list->count > 1) {
        qsort(out_list->objects, out_list->count, sizeof *out_list->objects, compare_objects);
    }
done:
    mem_free(&page);
    if (st != STATUS_OK) {
        store_list_deinit(out_list);
    }
    return st;
}

static bool is_of_a_step(const char *name)
{
    char folder[LAYOUT_NAME_MAX];
    uint64_t step = 0;
    size_t length = strcspn(name, "/");

    if (length >= sizeof folder) {
        return false;
    }
    memcpy(folder, name, length);
    folder[length] = '\0';
    return layout_parse_step_name(folder, &step);
}

/* "2026-12-01T03:44:19.000Z" */
static bool is_abandoned(struct store_s3 *s3, const char *initiated)
{
    struct tm parts = {0};

    return sscanf(initiated, "%d-%d-%dT%d:%d:%d", &parts.tm_year, &parts.tm_mon, &parts.tm_mday,
                  &parts.tm_hour, &parts.tm_min, &parts.tm_sec) == 6 &&
           (parts.tm_year -= 1900, parts.tm_mon -= 1, true) &&
           s3_client_now_s(s3->client) - (int64_t)timegm(&parts) > ABANDONED_AGE_S;
}

/* Only what this program began goes: the very key of a dead upload of this host, or an object of a
 * step under our prefix that nobody has touched for a day. */
static enum status abort_listed(struct page *page)
{
    if (page->is_encoded) {
        decode(page->key);
    }
    const char *name = name_of(page->s3, page->key);
    bool ours = page->only_key != NULL
                    ? strcmp(page->key, page->only_key) == 0
                    : name != NULL && is_of_a_step(name) && is_abandoned(page->s3, page->initiated);
    if (!ours || page->upload_id[0] == '\0') {
        return STATUS_OK;
    }
    log_info("an abandoned upload of '%s' is removed", page->key);
    return s3_upload_abort(page->s3->client, page->key, page->upload_id);
}

static enum status on_upload(void *context, const char *path, const char *text)
{
    static const char root[] = "ListMultipartUploadsResult";
    struct page *page = context;

    if (strncmp(path, root, sizeof root - 1) != 0) {
        return STATUS_OK;
    }
    path += sizeof root - 1;
    if (strcmp(path, "/Upload/Key") == 0) {
        keep(text, page->key, sizeof page->key);
    } else if (strcmp(path, "/Upload/UploadId") == 0) {
        keep(text, page->upload_id, sizeof page->upload_id);
    } else if (strcmp(path, "/Upload/Initiated") == 0) {
        keep(text, page->initiated, sizeof page->initiated);
    } else if (strcmp(path, "/Upload") == 0) {
        return abort_listed(page);
    } else if (strcmp(path, "/IsTruncated") == 0) {
        page->is_truncated = strcmp(text, "true") == 0;
    } else if (strcmp(path, "/NextKeyMarker") == 0) {
        keep(text, page->next_key, sizeof page->next_key);
    } else if (strcmp(path, "/NextUploadIdMarker") == 0) {
        keep(text, page->next_id, sizeof page->next_id);
    }
    return STATUS_OK;
}

static enum status abort_page(struct page *page, const char *prefix)
{
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    char next_key[S3_XML_TEXT_MAX], next_id[S3_UPLOAD_ID_MAX];
    struct s3_call call = {
        .method = "GET",
        .params = {{"uploads", ""},
                   {"prefix", prefix},
                   {"encoding-type", "url"},
                   {"max-uploads", PAGE_TEXT},
                   {"key-marker", next_key},
                   {"upload-id-marker", next_id}},
        .param_count = page->is_truncated ? 6 : 4,
    };

    memcpy(next_key, page->next_key, sizeof next_key);
    memcpy(next_id, page->next_id, sizeof next_id);
    page->next_key[0] = page->next_id[0] = '\0';
    page->is_truncated = false;
    st = s3_client_call(page->s3->client, &call, &reply);
    if (st == STATUS_NOT_FOUND && strcmp(reply.code, "NoSuchUpload") == 0) {
        st = STATUS_OK; /* some servers say so when there is none to list */
        goto done;
    }
    TRY(st, st, done);
    page->is_encoded = is_encoded(&reply.answer, "ListMultipartUploadsResult/EncodingType");
    TRY(st, s3_xml_walk(reply.answer.text, reply.answer.text_count, on_upload, page), done);
    if (page->is_encoded) {
        decode(page->next_key);
    }
    page->is_truncated =
        page->is_truncated && page->next_key[0] != '\0' &&
        (strcmp(page->next_key, next_key) != 0 || strcmp(page->next_id, next_id) != 0);
done:
    s3_reply_deinit(&reply);
    return st;
}

/* `only_key` NULL: abandoned uploads of any step. */
static enum status abort_uploads(struct store_s3 *s3, const char *only_key)
{
    enum status st = STATUS_OK;
    struct page *page = NULL;
    size_t pages = 0;

    TRY(st, mem_alloc(&page, 1, sizeof *page), done);
    page->s3 = s3;
    page->only_key = only_key;
    do {
        TRY(st, abort_page(page, only_key != NULL ? only_key : s3->prefix), done);
    } while (page->is_truncated && ++pages < PAGE_COUNT_MAX);
done:
    mem_free(&page);
    return st;
}

static enum status abort_journaled(void *context, const char *key, const char *upload_id)
{
    struct store_s3 *s3 = context;

    return upload_id[0] != '\0' ? s3_upload_abort(s3->client, key, upload_id)
                                : abort_uploads(s3, key);
}

/* The journal is the rule; the server's list the net for hosts that are gone. A server that does
 * not list uploads, or a key that may not, is no reason to make no backup. */
static enum status s3_clean(struct store *store)
{
    struct store_s3 *s3 = s3_of(store);
    enum status st = STATUS_OK;

    TRY(st, s3_journal_visit(s3_client_place(s3->client), abort_journaled, s3), done);
    st = abort_uploads(s3, NULL);
    if (st == STATUS_NO_PERMISSION || st == STATUS_UNSUPPORTED || st == STATUS_BAD_DATA) {
        log_warn("abandoned uploads cannot be looked for: %s", status_last()->message);
        st = STATUS_OK;
    }
    TRY(st, st, done);
done:
    return st;
}

static const struct store_ops s3_ops = {
    .close = s3_close,
    .put = s3_put,
    .get = s3_get,
    .stat = s3_stat,
    .list = s3_list,
    .remove = s3_remove,
    .clean = s3_clean,
};

/* Splits "BUCKET/a/b/" into the bucket and the prefix "a/b/". */
static enum status split_place(const char *where, char out_bucket[S3_HTTP_FIELD_MAX],
                               char out_prefix[S3_KEY_BYTES_MAX])
{
    enum status st = STATUS_OK;
    size_t length = strcspn(where, "/");
    const char *prefix = where[length] == '/' ? where + length + 1 : "";
    size_t bytes = strlen(prefix);

    if (length >= S3_HTTP_FIELD_MAX || bytes + STORE_NAME_MAX >= S3_KEY_BYTES_MAX) {
        return FAIL(STATUS_USAGE, "'s3://%.100s...' is too long", where);
    }
    memcpy(out_bucket, where, length);
    out_bucket[length] = '\0';
    if (bytes > 0 && prefix[bytes - 1] == '/') {
        bytes--;
    }
    memcpy(out_prefix, prefix, bytes);
    out_prefix[bytes] = '\0';
    if (bytes > 0) {
        TRY(st, store_check_name(out_prefix), done);
        memcpy(out_prefix + bytes, "/", 2);
    }
done:
    return st;
}

enum status store_s3_open(const char *where, int create, const struct store_options *options,
                          struct store **out_store)
{
    enum status st = STATUS_OK;
    struct store_s3 *s3 = NULL;
    char bucket[S3_HTTP_FIELD_MAX];

    (void)create; /* a prefix is there as soon as something is under it */
    TRY(st, mem_alloc(&s3, 1, sizeof *s3), done);
    s3->base.ops = &s3_ops;
    (void)pthread_mutex_init(&s3->mutex, NULL);
    TRY(st, split_place(where, bucket, s3->prefix), done);
    TRY(st, s3_client_open(bucket, options, &s3->client), done);
done:
    if (st == STATUS_OK) {
        *out_store = &s3->base;
    } else if (s3 != NULL) {
        s3_close(&s3->base);
    }
    return st;
}
