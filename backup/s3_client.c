/* Requests to S3; see s3_client.h.
 *
 *     prepare -> send -> 2xx: done
 *                     -> refusal -> mend (at once) or pause (later) -> prepare
 *                                -> neither: the refusal's status
 */
#include "backup/s3_client.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backup/crc32c.h"
#include "backup/s3_xml.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"

#define PLACE_MAX (S3_ENDPOINT_MAX + 256)
#define PATH_MAX_BYTES (3 * S3_KEY_BYTES_MAX + 256)
#define QUERY_MAX 8192
#define HEADERS_MAX (S3_CLIENT_HEADERS_MAX + 8)
#define CLOCK_TOLERANCE_S 240 /* servers take 5 to 15 minutes */
#define PAUSE_MS_FIRST 200
#define PAUSE_MS_MAX 10000
#define RETRY_AFTER_S_MAX 30
#define HASHED_BYTES_MAX ((size_t)64 << 10) /* of a body over TLS */
#define MESSAGE_SHOWN_MAX 200
#define NANOSECONDS 1000000000

/* What a request depends on and what an answer may teach. */
struct knowledge {
    struct s3_credentials credentials;
    char region[S3_REGION_MAX];
    int64_t clock_offset_s; /* the server's clock less ours */
    bool without_checksums;
};

struct s3_client {
    struct s3_http *http;
    struct s3_config config;
    char bucket[S3_HTTP_FIELD_MAX];
    char place[PLACE_MAX];
    pthread_mutex_t mutex; /* of `knowledge` */
    struct knowledge knowledge;
};

/* One request, ready to send; large, so it lies on the heap. */
struct prepared {
    struct knowledge used;
    char host[S3_ENDPOINT_MAX + S3_HTTP_FIELD_MAX];
    char path[PATH_MAX_BYTES];
    char query[QUERY_MAX];
    char url[16 + S3_ENDPOINT_MAX + S3_HTTP_FIELD_MAX + PATH_MAX_BYTES + QUERY_MAX];
    char date[S3_SIGN_DATE_MAX];
    char payload_hash[S3_SIGN_HASH_MAX];
    char checksum[CRC32C_TEXT_MAX];
    char authorization[S3_SIGN_TEXT_MAX];
    struct s3_pair headers[HEADERS_MAX];
    size_t header_count;
    char *lines[HEADERS_MAX];
    size_t line_count;
};

/* What this call has mended already. */
struct mended {
    bool clock, keys, region, checksums;
};

static bool is_bucket_name(const char *bucket)
{
    size_t length = strlen(bucket);

    return length >= 3 && length <= 255 &&
           strspn(bucket, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") ==
               length &&
           isalnum((unsigned char)bucket[0]);
}

enum status s3_client_open(const char *bucket, const struct store_options *options,
                           struct s3_client **out_client)
{
    enum status st = STATUS_OK;
    struct s3_client *client = NULL;

    if (!is_bucket_name(bucket)) {
        return FAIL(STATUS_USAGE, "'%.100s' is no name of a bucket", bucket);
    }
    TRY(st, mem_alloc(&client, 1, sizeof *client), done);
    (void)pthread_mutex_init(&client->mutex, NULL);
    TRY(st, s3_config_load(options, &client->config), done);
    TRY(st, s3_config_read_credentials(&client->config, &client->knowledge.credentials), done);
    memcpy(client->bucket, bucket, strlen(bucket) + 1);
    memcpy(client->knowledge.region, client->config.region, sizeof client->config.region);
    (void)snprintf(client->place, sizeof client->place, "%s %s",
                   client->config.endpoint[0] != '\0' ? client->config.endpoint : "aws", bucket);
    TRY(st, s3_http_open(client->config.ca_file, &client->http), done);
done:
    if (st == STATUS_OK) {
        *out_client = client;
    } else {
        s3_client_close(&client);
    }
    return st;
}

void s3_client_close(struct s3_client **client)
{
    if (*client != NULL) {
        s3_http_close(&(*client)->http);
        explicit_bzero(&(*client)->knowledge.credentials, sizeof(struct s3_credentials));
        (void)pthread_mutex_destroy(&(*client)->mutex);
        mem_free(client);
    }
}

static int64_t now_s(void)
{
    return clock_wall_ns() / NANOSECONDS;
}

static void look_up(struct s3_client *client, struct knowledge *out_knowledge)
{
    (void)pthread_mutex_lock(&client->mutex);
    *out_knowledge = client->knowledge;
    (void)pthread_mutex_unlock(&client->mutex);
}

/* Scheme, host and the path's begin. Amazon's own addresses have the bucket in the host, but for
 * one with dots, which its certificate would not fit; other servers have it in the path. */
static enum status make_url(const struct s3_client *client, const struct s3_call *call,
                            struct prepared *prepared)
{
    enum status st = STATUS_OK;
    const char *scheme = "https", *region = prepared->used.region;
    bool in_host = client->config.endpoint[0] == '\0' && strchr(client->bucket, '.') == NULL;

    if (client->config.endpoint[0] != '\0') {
        bool tls = strncmp(client->config.endpoint, "https:", 6) == 0;
        const char *host = strstr(client->config.endpoint, "://") + 3;
        size_t length = strlen(host);
        const char *usual = tls ? ":443" : ":80"; /* never part of the Host header */
        if (length > strlen(usual) && strcmp(host + length - strlen(usual), usual) == 0) {
            length -= strlen(usual);
        }
        scheme = tls ? "https" : "http";
        (void)snprintf(prepared->host, sizeof prepared->host, "%.*s", (int)length, host);
    } else {
        (void)snprintf(prepared->host, sizeof prepared->host, "%s%ss3.%s.amazonaws.com%s",
                       in_host ? client->bucket : "", in_host ? "." : "", region,
                       strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
    }
    int length = snprintf(prepared->path, sizeof prepared->path, "%s%s%s", in_host ? "" : "/",
                          in_host ? "" : client->bucket, in_host || call->key != NULL ? "/" : "");
    if (call->key != NULL) {
        TRY(st,
            s3_sign_encode(call->key, true, prepared->path + length,
                           sizeof prepared->path - (size_t)length),
            done);
    }
    TRY(st, s3_sign_query(call->params, call->param_count, prepared->query, sizeof prepared->query),
        done);
    (void)snprintf(prepared->url, sizeof prepared->url, "%s://%s%s%s%s", scheme, prepared->host,
                   prepared->path, prepared->query[0] != '\0' ? "?" : "", prepared->query);
done:
    return st;
}

/* The body's hash is signed where nothing else protects it, and where it costs nothing. */
static void hash_body(const struct s3_client *client, const struct s3_call *call,
                      struct prepared *prepared)
{
    bool tls = strncmp(client->config.endpoint, "http:", 5) != 0;

    if (tls && call->body_bytes > HASHED_BYTES_MAX) {
        memcpy(prepared->payload_hash, S3_SIGN_UNSIGNED, sizeof S3_SIGN_UNSIGNED);
    } else {
        s3_sign_hash(call->body, call->body_bytes, prepared->payload_hash);
    }
    if (call->checksum == S3_CHECKSUM_SEND) {
        crc32c_format(crc32c_bytes(call->body, call->body_bytes), prepared->checksum);
    }
}

static void add_header(struct prepared *prepared, const char *name, const char *value)
{
    CHECK(prepared->header_count < HEADERS_MAX);
    prepared->headers[prepared->header_count++] = (struct s3_pair){name, value};
}

/* The rest is left to proxies, some of which edit it. */
static bool is_signed(const char *name)
{
    return strncmp(name, "x-amz-", 6) == 0 || strcmp(name, "host") == 0 ||
           strcmp(name, "range") == 0;
}

static void set_headers(const struct s3_call *call, bool with_checksum, struct prepared *prepared)
{
    prepared->header_count = 0;
    add_header(prepared, "host", prepared->host);
    add_header(prepared, "x-amz-date", prepared->date);
    add_header(prepared, "x-amz-content-sha256", prepared->payload_hash);
    if (prepared->used.credentials.token[0] != '\0') {
        add_header(prepared, "x-amz-security-token", prepared->used.credentials.token);
    }
    if (with_checksum && call->checksum == S3_CHECKSUM_SEND) {
        add_header(prepared, "x-amz-checksum-crc32c", prepared->checksum);
    } else if (with_checksum && call->checksum == S3_CHECKSUM_DECLARE) {
        add_header(prepared, "x-amz-checksum-algorithm", "CRC32C");
    }
    for (size_t i = 0; i < call->header_count; i++) {
        add_header(prepared, call->headers[i].name, call->headers[i].value);
    }
    if (call->body != NULL) {
        add_header(prepared, "content-type",
                   strcmp(call->method, "POST") == 0 ? "application/xml"
                                                     : "application/octet-stream");
    }
}

static void free_lines(struct prepared *prepared)
{
    for (size_t i = 0; i < prepared->line_count; i++) {
        mem_free(&prepared->lines[i]);
    }
    prepared->line_count = 0;
}

static enum status add_line(struct prepared *prepared, const char *name, const char *value)
{
    CHECK(prepared->line_count < HEADERS_MAX);
    return mem_format(&prepared->lines[prepared->line_count++], "%s: %s", name, value);
}

static enum status sign(const struct s3_call *call, struct prepared *prepared)
{
    enum status st = STATUS_OK;
    struct s3_pair headers[HEADERS_MAX];
    size_t count = 0;

    for (size_t i = 0; i < prepared->header_count; i++) {
        if (is_signed(prepared->headers[i].name)) {
            headers[count++] = prepared->headers[i];
        }
        TRY(st, add_line(prepared, prepared->headers[i].name, prepared->headers[i].value), done);
    }
    struct s3_sign_request request = {
        .method = call->method,
        .path = prepared->path,
        .query = prepared->query,
        .headers = headers,
        .header_count = count,
        .payload_hash = prepared->payload_hash,
        .date = prepared->date,
        .region = prepared->used.region,
    };
    TRY(st, s3_sign_authorize(&request, &prepared->used.credentials, prepared->authorization),
        done);
    TRY(st, add_line(prepared, "authorization", prepared->authorization), done);
done:
    return st;
}

static enum status send_once(struct s3_client *client, const struct s3_call *call,
                             const struct mended *mended, struct prepared *prepared,
                             struct s3_http_answer *out_answer)
{
    enum status st = STATUS_OK;

    *out_answer = (struct s3_http_answer){.date_s = -1};
    look_up(client, &prepared->used);
    bool with_checksum = !prepared->used.without_checksums && !mended->checksums;
    TRY(st, make_url(client, call, prepared), done);
    s3_sign_format_date(now_s() + prepared->used.clock_offset_s, prepared->date);
    set_headers(call, with_checksum, prepared);
    TRY(st, sign(call, prepared), done);
    struct s3_http_request request = {
        .method = call->method,
        .url = prepared->url,
        .headers = (const char *const *)prepared->lines,
        .header_count = prepared->line_count,
        .body = call->body,
        .body_bytes = call->body_bytes,
        .into = call->into,
        .into_bytes = call->into_bytes,
    };
    TRY(st, s3_http_send(client->http, &request, out_answer), done);
done:
    free_lines(prepared);
    return st;
}

static void read_error(struct s3_reply *reply, char out_message[MESSAGE_SHOWN_MAX])
{
    const struct s3_http_answer *answer = &reply->answer;

    out_message[0] = reply->code[0] = '\0';
    if (answer->text_count == 0) {
        return;
    }
    s3_xml_find(answer->text, answer->text_count, "Error/Code", reply->code, sizeof reply->code);
    s3_xml_find(answer->text, answer->text_count, "Error/Message", out_message, MESSAGE_SHOWN_MAX);
    for (char *at = out_message; *at != '\0'; at++) {
        *at = iscntrl((unsigned char)*at) ? '?' : *at;
    }
    for (char *at = reply->code; *at != '\0'; at++) {
        *at = isalnum((unsigned char)*at) || *at == '.' ? *at : '?';
    }
}

/* Codes that say more than the number they come with. */
static const struct {
    const char *code;
    enum status st;
} known_codes[] = {
    {"NoSuchBucket", STATUS_NOT_FOUND},
    {"SlowDown", STATUS_IO},
    {"InternalError", STATUS_IO},
    {"ServiceUnavailable", STATUS_IO},
    {"RequestTimeout", STATUS_IO},
    {"IncompleteBody", STATUS_IO},
    {"BadDigest", STATUS_IO},
    {"XAmzContentSHA256Mismatch", STATUS_IO},
    {"XAmzContentChecksumMismatch", STATUS_IO},
    {"QuotaExceeded", STATUS_NO_SPACE},
    {"XMinioStorageFull", STATUS_NO_SPACE},
    {"InsufficientStorage", STATUS_NO_SPACE},
    {"ExpiredToken", STATUS_NO_PERMISSION},
    {"InvalidToken", STATUS_NO_PERMISSION},
};

static enum status status_of(const struct s3_reply *reply)
{
    int code = reply->answer.code;

    for (size_t i = 0; i < sizeof known_codes / sizeof *known_codes; i++) {
        if (strcmp(reply->code, known_codes[i].code) == 0) {
            return known_codes[i].st;
        }
    }
    switch (code) {
    case 401:
    case 403:
        return STATUS_NO_PERMISSION;
    case 404:
        return STATUS_NOT_FOUND;
    case 408:
    case 409: /* another change of the same object is under way */
    case 412: /* If-Match: it was replaced since; from the start it may go well */
    case 429:
        return STATUS_IO;
    case 416:
        return STATUS_CORRUPT;
    case 507:
        return STATUS_NO_SPACE;
    default:
        return code >= 500 && code != 501 ? STATUS_IO : STATUS_UNSUPPORTED;
    }
}

enum status s3_client_refusal(const struct s3_client *client, const struct s3_call *call,
                              struct s3_reply *reply)
{
    char message[MESSAGE_SHOWN_MAX];
    const char *key = call->key != NULL ? call->key : "", *slash = call->key != NULL ? "/" : "";

    read_error(reply, message);
    if (strcmp(reply->code, "NoSuchBucket") == 0) {
        return FAIL(STATUS_NOT_FOUND, "no bucket '%s' at '%.*s'; make it first", client->bucket,
                    (int)strcspn(client->place, " "), client->place);
    }
    if (reply->answer.code / 100 == 3) {
        return FAIL(STATUS_USAGE,
                    "bucket '%s' is elsewhere (region '%s'); give --region or --endpoint-url",
                    client->bucket, reply->answer.region);
    }
    return FAIL(status_of(reply), "the server refuses %s of '%s%s%s': %s %d%s%s", call->method,
                client->bucket, slash, key, reply->code[0] != '\0' ? reply->code : "HTTP",
                reply->answer.code, message[0] != '\0' ? ": " : "", message);
}

static bool mend_clock(struct s3_client *client, const struct prepared *prepared,
                       const struct s3_reply *reply)
{
    int64_t offset = reply->answer.date_s - now_s();
    int64_t off = offset - prepared->used.clock_offset_s;

    if (reply->answer.date_s < 0 || (off <= CLOCK_TOLERANCE_S && off >= -CLOCK_TOLERANCE_S)) {
        return false;
    }
    log_warn("the server's clock is %lld s ahead of this one; requests are dated by it",
             (long long)offset);
    (void)pthread_mutex_lock(&client->mutex);
    client->knowledge.clock_offset_s = offset;
    (void)pthread_mutex_unlock(&client->mutex);
    return true;
}

static bool mend_keys(struct s3_client *client, const struct prepared *prepared)
{
    struct s3_credentials keys;
    struct status_record why;

    status_take(&why); /* the server's refusal is what is reported, not a missing file */
    bool changed = s3_config_read_credentials(&client->config, &keys) == STATUS_OK &&
                   memcmp(&keys, &prepared->used.credentials, sizeof keys) != 0;
    (void)status_give(&why);
    if (changed) {
        (void)pthread_mutex_lock(&client->mutex);
        client->knowledge.credentials = keys;
        (void)pthread_mutex_unlock(&client->mutex);
    }
    explicit_bzero(&keys, sizeof keys);
    return changed;
}

static bool mend_region(struct s3_client *client, const struct prepared *prepared,
                        const struct s3_reply *reply)
{
    const char *region = reply->answer.region;
    size_t length = strlen(region);

    if (length == 0 || length >= S3_REGION_MAX || strcmp(region, prepared->used.region) == 0 ||
        strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") != length) {
        return false;
    }
    (void)pthread_mutex_lock(&client->mutex);
    memcpy(client->knowledge.region, region, length + 1);
    (void)pthread_mutex_unlock(&client->mutex);
    return true;
}

static bool may_dislike_checksums(const struct s3_reply *reply)
{
    static const char *const codes[] = {"NotImplemented", "InvalidRequest", "InvalidArgument"};

    for (size_t i = 0; reply->answer.code == 400 && i < sizeof codes / sizeof *codes; i++) {
        if (strcmp(reply->code, codes[i]) == 0) {
            return true;
        }
    }
    return reply->answer.code == 501;
}

/* True: something of ours was wrong and is no more, so try again at once. */
static bool mend(struct s3_client *client, const struct s3_call *call,
                 const struct prepared *prepared, const struct s3_reply *reply,
                 struct mended *mended)
{
    int code = reply->answer.code;
    bool denied = code == 400 || code == 401 || code == 403;

    if (denied && !mended->clock && mend_clock(client, prepared, reply)) {
        return mended->clock = true;
    }
    if (denied && !mended->keys && mend_keys(client, prepared)) {
        return mended->keys = true;
    }
    if ((code == 301 || code == 307 || code == 400) && !mended->region &&
        mend_region(client, prepared, reply)) {
        return mended->region = true;
    }
    if (call->checksum != S3_CHECKSUM_NONE && !mended->checksums &&
        !prepared->used.without_checksums && may_dislike_checksums(reply)) {
        return mended->checksums = true;
    }
    return false;
}

void s3_client_pause(int tries, int64_t retry_after_s)
{
    int64_t pause_ms = (int64_t)PAUSE_MS_FIRST << (tries < 10 ? tries - 1 : 9);
    uint64_t seed = (uint64_t)clock_monotonic_ns();

    pause_ms = pause_ms < PAUSE_MS_MAX ? pause_ms : PAUSE_MS_MAX;
    pause_ms =
        pause_ms / 2 + (int64_t)(hash_bytes64(&seed, sizeof seed) % (uint64_t)(pause_ms / 2 + 1));
    if (retry_after_s > 0) {
        pause_ms += (retry_after_s < RETRY_AFTER_S_MAX ? retry_after_s : RETRY_AFTER_S_MAX) * 1000;
    }
    clock_sleep_ms(pause_ms);
}

static void learn(struct s3_client *client, const struct mended *mended)
{
    (void)pthread_mutex_lock(&client->mutex);
    bool news = mended->checksums && !client->knowledge.without_checksums;
    client->knowledge.without_checksums |= news;
    (void)pthread_mutex_unlock(&client->mutex);
    if (news) {
        log_warn("the server does not take checksums; objects are compared after they are sent");
    }
}

enum status s3_client_call(struct s3_client *client, const struct s3_call *call,
                           struct s3_reply *out_reply)
{
    enum status st = STATUS_OK;
    struct mended mended = {false, false, false, false};
    struct prepared *prepared = NULL;
    int64_t retry_after_s;

    *out_reply = (struct s3_reply){.tries = 1};
    TRY(st, mem_alloc(&prepared, 1, sizeof *prepared), done);
    hash_body(client, call, prepared);
    for (;;) {
        st = send_once(client, call, &mended, prepared, &out_reply->answer);
        if (st == STATUS_OK && out_reply->answer.code / 100 == 2) {
            learn(client, &mended);
            break;
        }
        bool answered = st == STATUS_OK;
        retry_after_s = answered ? out_reply->answer.retry_after_s : -1;
        st = answered ? s3_client_refusal(client, call, out_reply) : st;
        bool again = answered && mend(client, call, prepared, out_reply, &mended);
        bool passing = (st == STATUS_IO && out_reply->answer.code != 412) || st == STATUS_TIMEOUT;
        s3_http_answer_deinit(&out_reply->answer);
        if (!again && (!passing || out_reply->tries == S3_CLIENT_TRIES)) {
            break;
        }
        if (!again) {
            log_debug("try %d of %d: %s", out_reply->tries, S3_CLIENT_TRIES,
                      status_last()->message);
            s3_client_pause(out_reply->tries, retry_after_s);
            out_reply->tries++;
        }
    }
done:
    if (prepared != NULL) {
        explicit_bzero(&prepared->used, sizeof prepared->used);
    }
    mem_free(&prepared);
    return st;
}

void s3_reply_deinit(struct s3_reply *reply)
{
    s3_http_answer_deinit(&reply->answer);
}

bool s3_client_sends_checksums(struct s3_client *client)
{
    struct knowledge knowledge;

    look_up(client, &knowledge);
    return !knowledge.without_checksums;
}

const char *s3_client_place(const struct s3_client *client)
{
    return client->place;
}

int64_t s3_client_now_s(struct s3_client *client)
{
    struct knowledge knowledge;

    look_up(client, &knowledge);
    return now_s() + knowledge.clock_offset_s;
}
