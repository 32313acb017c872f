/* Claims about the S3 store before servers that fail, lie or are merely odd (backup/store_s3,
 * s3_client, s3_upload); what a good server sees is in tests/cli/backup_s3.sh. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backup/s3_client.h"
#include "backup/s3_upload.h"
#include "backup/store.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/mem.h"
#include "tests/support/http_stub.h"
#include "tests/unit/meta/meta_support.h"

#define MIB ((uint64_t)1 << 20)
#define CREATED                                                                                    \
    "<InitiateMultipartUploadResult><UploadId>id-1</UploadId></InitiateMultipartUploadResult>"
#define COMPLETED                                                                                  \
    "<CompleteMultipartUploadResult><ETag>\"all\"</ETag></CompleteMultipartUploadResult>"
#define ETAG "ETag: \"v1\"\r\n"

static char home[FS_PATH_MAX];
static struct http_stub *stub;
static struct store *store;

/* What the server has seen; written by its thread while a call waits for it. */
static struct {
    int requests, parts, completions, aborts, with_checksum;
    char last_head[HTTP_STUB_HEAD_MAX];
} seen;

static bool begins(const struct http_stub_request *request, const char *text)
{
    return strncmp(request->head, text, strlen(text)) == 0;
}

static bool asks(const struct http_stub_request *request, const char *text)
{
    return strstr(request->head, text) != NULL;
}

static void note(const struct http_stub_request *request)
{
    seen.requests++;
    seen.parts += asks(request, "partNumber=");
    seen.completions += begins(request, "POST") && asks(request, "?uploadId=");
    seen.aborts += begins(request, "DELETE") && asks(request, "?uploadId=");
    seen.with_checksum += asks(request, "x-amz-checksum");
    memcpy(seen.last_head, request->head, sizeof seen.last_head);
}

/* A server without faults, for uploads. */
static void say_well(const struct http_stub_request *request, struct http_stub_answer *answer)
{
    if (asks(request, "?uploads=")) {
        http_stub_say(answer, 200, "", CREATED);
    } else if (begins(request, "POST")) {
        http_stub_say(answer, 200, "", COMPLETED);
    } else {
        http_stub_say(answer, 200, ETAG, "");
    }
}

static void open_before(http_stub_fn server)
{
    support_make_folder(home);
    cr_assert_eq(setenv("XDG_STATE_HOME", home, 1), 0);
    cr_assert_eq(setenv("AWS_ACCESS_KEY_ID", "first", 1), 0);
    cr_assert_eq(setenv("AWS_SECRET_ACCESS_KEY", "secret", 1), 0);
    cr_assert_eq(setenv("AWS_CONFIG_FILE", "/dev/null", 1), 0);
    cr_assert_eq(setenv("NO_PROXY", "127.0.0.1", 1), 0);
    (void)unsetenv("AWS_SESSION_TOKEN");
    assert_ok(http_stub_start(server, NULL, &stub));
    struct store_options options = {.endpoint_url = http_stub_url(stub), .region = "here-1"};
    assert_ok(store_open("s3://bucket/p", true, &options, &store));
}

static void close_all(void)
{
    store_close(&store);
    http_stub_stop(&stub);
    support_remove_folder(home);
}

TestSuite(store_s3, .fini = close_all, .timeout = 60);

static enum status read_zeros(void *context, void *buffer, size_t bytes, uint64_t offset)
{
    (void)context;
    (void)offset;
    memset(buffer, 0, bytes);
    return STATUS_OK;
}

static enum status put(uint64_t bytes)
{
    struct store_source source = {NULL, bytes, read_zeros};

    return store_put(store, "x", &source);
}

static void busy_twice(void *context, const struct http_stub_request *request,
                       struct http_stub_answer *answer)
{
    (void)context;
    note(request);
    if (seen.requests <= 2) {
        http_stub_say(answer, 503, "", "<Error><Code>SlowDown</Code></Error>");
    } else if (seen.requests == 3) {
        answer->count = 0; /* a connection that is lost */
    } else {
        http_stub_say(answer, 200, ETAG, "");
    }
}

Test(store_s3, asks_a_busy_server_again)
{
    open_before(busy_twice);
    assert_ok(store_put_bytes(store, "x", "12345", 5));
    cr_assert_eq(seen.requests, 4);
}

static void always_broken(void *context, const struct http_stub_request *request,
                          struct http_stub_answer *answer)
{
    (void)context;
    note(request);
    http_stub_say(answer, 500, "",
                  "<Error><Code>InternalError</Code><Message>a\nb</Message></Error>");
}

Test(store_s3, gives_a_broken_server_up_in_the_end)
{
    open_before(always_broken);
    assert_status(store_remove(store, "x"), STATUS_IO);
    cr_assert_eq(seen.requests, S3_CLIENT_TRIES);
    cr_assert(strstr(status_last()->message, "InternalError 500: a?b"), "%s",
              status_last()->message);
}

static void an_hour_ahead(void *context, const struct http_stub_request *request,
                          struct http_stub_answer *answer)
{
    char date[64], header[128], signed_at[64], wanted[64];
    time_t when = time(NULL) + 3600;
    struct tm parts;

    (void)context;
    note(request);
    CHECK(gmtime_r(&when, &parts) != NULL);
    (void)strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &parts);
    (void)strftime(wanted, sizeof wanted, "%Y%m%dT%H", &parts);
    (void)snprintf(header, sizeof header, "Date: %s\r\n", date);
    http_stub_header(request, "x-amz-date", signed_at, sizeof signed_at);
    bool right = strncmp(signed_at, wanted, strlen(wanted)) == 0;
    http_stub_say(answer, right ? 200 : 403, header,
                  right ? "" : "<Error><Code>RequestTimeTooSkewed</Code></Error>");
}

Test(store_s3, takes_the_time_from_the_server_once)
{
    open_before(an_hour_ahead);
    assert_ok(store_put_bytes(store, "x", "12345", 5));
    cr_assert_eq(seen.requests, 2);
    assert_ok(store_put_bytes(store, "x", "12345", 5));
    cr_assert_eq(seen.requests, 3, "the offset is kept");
}

static void denies(void *context, const struct http_stub_request *request,
                   struct http_stub_answer *answer)
{
    (void)context;
    note(request);
    if (asks(request, "Credential=second/")) {
        http_stub_say(answer, 200, ETAG, "");
    } else {
        http_stub_say(answer, 403, "", "<Error><Code>ExpiredToken</Code></Error>");
    }
}

Test(store_s3, looks_for_renewed_keys_when_it_is_denied)
{
    open_before(denies);
    assert_status(store_put_bytes(store, "x", "1", 1), STATUS_NO_PERMISSION);
    cr_assert_eq(seen.requests, 1, "the same keys are not tried again");
    cr_assert_eq(setenv("AWS_ACCESS_KEY_ID", "second", 1), 0);
    assert_ok(store_put_bytes(store, "x", "1", 1));
    cr_assert_eq(seen.requests, 3);
}

static void no_checksums(void *context, const struct http_stub_request *request,
                         struct http_stub_answer *answer)
{
    (void)context;
    note(request);
    if (asks(request, "x-amz-checksum")) {
        http_stub_say(answer, 501, "", "<Error><Code>NotImplemented</Code></Error>");
    } else {
        say_well(request, answer);
    }
}

Test(store_s3, does_without_checksums_where_they_are_not_known)
{
    open_before(no_checksums);
    assert_ok(put(17 * MIB));
    cr_assert(seen.with_checksum == 1 && seen.parts == 3 && seen.completions == 1);
}

static void good(void *context, const struct http_stub_request *request,
                 struct http_stub_answer *answer)
{
    (void)context;
    note(request);
    say_well(request, answer);
}

Test(store_s3, sends_each_part_once_with_its_checksum)
{
    open_before(good);
    assert_ok(put(17 * MIB));
    cr_assert(seen.parts == 3 && seen.completions == 1 && seen.aborts == 0);
    cr_assert_eq(seen.with_checksum, 4, "the beginning declares it, three parts carry it");
    assert_ok(put(8 * MIB));
    cr_assert_eq(seen.requests, 6, "what fits into one part is one request");
}

Test(store_s3, signs_little_and_expects_nothing)
{
    open_before(good);
    assert_ok(store_put_bytes(store, "a b+c", "1", 1));
    cr_assert(strstr(seen.last_head, "PUT /bucket/p/a%20b%2Bc HTTP/1.1") == seen.last_head);
    cr_assert(strstr(seen.last_head, "SignedHeaders=host;x-amz-checksum-crc32c;"
                                     "x-amz-content-sha256;x-amz-date,"),
              "%s", seen.last_head);
    cr_assert_null(strstr(seen.last_head, "Expect"));
    cr_assert_null(strstr(seen.last_head, "chunked"));
}

static const char *completion; /* what a lying server answers, with code 200 */

static void lies_at_completion(void *context, const struct http_stub_request *request,
                               struct http_stub_answer *answer)
{
    (void)context;
    note(request);
    if (begins(request, "POST") && asks(request, "?uploadId=")) {
        http_stub_say(answer, 200, "", completion);
    } else {
        say_well(request, answer);
    }
}

static void assert_not_published(const char *answer)
{
    completion = answer;
    open_before(lies_at_completion);
    assert_status(put(9 * MIB), STATUS_IO);
    cr_assert_eq(seen.aborts, 1);
    cr_assert(seen.completions > 1, "an error behind a 200 may pass, so it is asked again");
}

Test(store_s3, a_completion_with_an_error_behind_its_200_is_none)
{
    assert_not_published("<Error><Code>InternalError</Code></Error>");
}

Test(store_s3, a_completion_without_a_result_is_none)
{
    assert_not_published("");
}

Test(store_s3, a_completion_that_is_cut_short_is_none)
{
    assert_not_published("<CompleteMultipartUploadResult><ETag>\"all\"</ETag>");
}

static void loses_a_completion(void *context, const struct http_stub_request *request,
                               struct http_stub_answer *answer)
{
    (void)context;
    note(request);
    if (begins(request, "POST") && asks(request, "?uploadId=")) {
        if (seen.completions == 1) {
            answer->count = 0; /* it was done, but nobody hears of it */
        } else {
            http_stub_say(answer, 404, "", "<Error><Code>NoSuchUpload</Code></Error>");
        }
    } else if (begins(request, "HEAD")) {
        answer->count = (size_t)snprintf(answer->bytes, sizeof answer->bytes,
                                         "HTTP/1.1 200 OK\r\nConnection: close\r\n" ETAG
                                         "Content-Length: %llu\r\n\r\n",
                                         (unsigned long long)(9 * MIB));
    } else {
        say_well(request, answer);
    }
}

Test(store_s3, a_completion_whose_answer_was_lost_is_looked_at)
{
    open_before(loses_a_completion);
    assert_ok(put(9 * MIB));
    cr_assert(seen.completions == 2 && seen.aborts == 0 && seen.parts == 2);
}

static void refuses_the_last_part(void *context, const struct http_stub_request *request,
                                  struct http_stub_answer *answer)
{
    (void)context;
    note(request);
    if (asks(request, "partNumber=3")) {
        http_stub_say(answer, 403, "", "<Error><Code>AccessDenied</Code></Error>");
    } else {
        say_well(request, answer);
    }
}

Test(store_s3, never_completes_what_lacks_a_part)
{
    open_before(refuses_the_last_part);
    assert_status(put(17 * MIB), STATUS_NO_PERMISSION);
    cr_assert(seen.completions == 0 && seen.aborts == 1);
    char *journal = NULL;
    assert_ok(mem_format(&journal, "%s/holdfast/uploads", home));
    struct fs_names left;
    assert_ok(fs_list(fs_posix(), journal, &left));
    cr_assert_eq(left.count, 0, "what was aborted needs no entry");
    fs_names_deinit(&left);
    mem_free(&journal);
}

static struct {
    int code;
    const char *headers, *body;
} got; /* the answer to every GET */

static void gives(void *context, const struct http_stub_request *request,
                  struct http_stub_answer *answer)
{
    (void)context;
    note(request);
    http_stub_say(answer, got.code, got.headers, got.body);
}

static enum status get_answered(int code, const char *headers, const char *body)
{
    char buffer[4];

    got.code = code;
    got.headers = headers;
    got.body = body;
    return store_get(store, "x", buffer, 4, 4);
}

Test(store_s3, takes_exactly_the_range_that_it_asked_for)
{
    open_before(gives);
    assert_ok(get_answered(206, "Content-Range: bytes 4-7/9\r\n" ETAG, "abcd"));
    assert_ok(get_answered(200, "Content-Range: bytes 4-7/9\r\n" ETAG, "abcd"));
    assert_status(get_answered(416, "", "<Error><Code>InvalidRange</Code></Error>"),
                  STATUS_CORRUPT);
    assert_status(get_answered(206, "Content-Range: bytes 4-6/7\r\n", "abc"), STATUS_CORRUPT);
    assert_status(get_answered(206, "Content-Range: bytes 0-3/9\r\n", "abcd"), STATUS_IO);
    assert_status(get_answered(206, "Content-Range: bytes 4-7/9\r\n", "ab"), STATUS_IO);
    assert_status(get_answered(200, "", "abcd"), STATUS_UNSUPPORTED);
    assert_status(get_answered(404, "", "<Error><Code>NoSuchKey</Code></Error>"), STATUS_NOT_FOUND);
}

static void replaced_between(void *context, const struct http_stub_request *request,
                             struct http_stub_answer *answer)
{
    char condition[64];

    (void)context;
    note(request);
    http_stub_header(request, "if-match", condition, sizeof condition);
    if (asks(request, "bytes=0-3")) {
        http_stub_say(answer, 206, "Content-Range: bytes 0-3/8\r\n" ETAG, "abcd");
    } else if (strcmp(condition, "\"v1\"") == 0) {
        http_stub_say(answer, 412, "", "<Error><Code>PreconditionFailed</Code></Error>");
    } else {
        http_stub_say(answer, 206, "Content-Range: bytes 4-7/8\r\n", "efgh");
    }
}

Test(store_s3, mixes_no_two_versions_of_an_object)
{
    char buffer[4];

    open_before(replaced_between);
    assert_ok(store_get(store, "x", buffer, 4, 0));
    assert_status(store_get(store, "x", buffer, 4, 4), STATUS_IO);
    cr_assert_eq(seen.requests, 2, "the same range is not asked for again");
}

static enum status list_answered(const char *body, size_t *out_count)
{
    struct store_list list;

    got.code = 200;
    got.headers = "";
    got.body = body;
    enum status st = store_list(store, "", &list);
    *out_count = list.count;
    store_list_deinit(&list);
    return st;
}

#define ENTRY(key, size) "<Contents><Key>" key "</Key><Size>" size "</Size></Contents>"
#define LISTED(inside) "<ListBucketResult>" inside "</ListBucketResult>"

Test(store_s3, believes_no_list_that_makes_no_sense)
{
    size_t count = 0;

    open_before(gives);
    assert_ok(
        list_answered(LISTED(ENTRY("p/a", "1") ENTRY("q/other", "1") ENTRY("p/", "0")), &count));
    cr_assert_eq(count, 1, "only objects below the prefix");
    assert_ok(
        list_answered(LISTED(ENTRY("p%2Fa+b", "1") "<EncodingType>url</EncodingType>"), &count));
    cr_assert_eq(count, 1);
    assert_status(list_answered(LISTED(ENTRY("p/a", "-")), &count), STATUS_BAD_DATA);
    assert_status(list_answered("<ListBucketResult>" ENTRY("p/a", "1"), &count), STATUS_BAD_DATA);
    assert_status(list_answered("<html></html>", &count), STATUS_IO);
    assert_status(list_answered(LISTED("<IsTruncated>true</IsTruncated>"), &count), STATUS_IO);
    assert_status(list_answered(LISTED("<IsTruncated>true</IsTruncated>"
                                       "<NextContinuationToken>t</NextContinuationToken>"),
                                &count),
                  STATUS_IO);
    assert_status(list_answered("<!DOCTYPE x [<!ENTITY e \"e\">]><ListBucketResult/>", &count),
                  STATUS_BAD_DATA);
}

static const char *initiated; /* of an upload that somebody else has begun */

static void has_open_uploads(void *context, const struct http_stub_request *request,
                             struct http_stub_answer *answer)
{
    char body[1024];

    (void)context;
    note(request);
    (void)snprintf(body, sizeof body,
                   "<ListMultipartUploadsResult><Upload><Key>p/step_0000001/tp00</Key><UploadId>u"
                   "</UploadId><Initiated>%s</Initiated></Upload><Upload><Key>p/other</Key>"
                   "<UploadId>v</UploadId><Initiated>%s</Initiated></Upload>"
                   "</ListMultipartUploadsResult>",
                   initiated, initiated);
    http_stub_say(answer, begins(request, "GET") ? 200 : 204, "", body);
}

Test(store_s3, aborts_old_uploads_of_steps_only)
{
    char now[CLOCK_TEXT_MAX];

    initiated = "2020-01-01T00:00:00.000Z";
    open_before(has_open_uploads);
    assert_ok(store_clean(store));
    cr_assert_eq(seen.aborts, 1);
    clock_format_utc(clock_wall_ns(), now);
    initiated = now;
    assert_ok(store_clean(store));
    cr_assert_eq(seen.aborts, 1, "a young one may still run");
}

Test(s3_upload, plans_equal_parts_within_the_protocols_limits)
{
    static const struct {
        uint64_t bytes, part_bytes;
    } plans[] = {
        {0, 8 * MIB},
        {80000 * MIB, 8 * MIB}, /* 10,000 parts exactly */
        {80000 * MIB + 1, 9 * MIB},
        {UINT64_C(60) << 30, 8 * MIB},
        {UINT64_C(1) << 40, 105 * MIB},
        {UINT64_C(50000) << 30, 5120 * MIB},
    };
    uint64_t part = 0;

    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        assert_ok(s3_upload_plan(plans[i].bytes, &part));
        cr_assert_eq(part, plans[i].part_bytes, "%llu bytes: %llu",
                     (unsigned long long)plans[i].bytes, (unsigned long long)part);
    }
    assert_status(s3_upload_plan(UINT64_MAX, &part), STATUS_USAGE);
    assert_status(s3_upload_plan((UINT64_C(50000) << 30) + 1, &part), STATUS_USAGE);
}
