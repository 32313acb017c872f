/* One HTTP request and its answer, by libcurl: the only file that knows it.
 *
 * Before it: s3_client (signed requests). What comes back is the server's word: a code of any kind
 * is STATUS_OK here; statuses are for what happened to the connection. No redirects are followed,
 * no "Expect: 100-continue" is sent (old servers and proxies hang on it), bodies have a
 * Content-Length always. Proxies are taken from the environment as curl does.
 * Memory: what the caller brings, and at most S3_HTTP_TEXT_MAX for an answer's text.
 * Threads: s3_http_send by several at once; each has a connection of its own meanwhile, and
 * connections are kept for later requests.
 */
#ifndef BACKUP_S3_HTTP_H
#define BACKUP_S3_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define S3_HTTP_TEXT_MAX ((size_t)16 << 20)
#define S3_HTTP_FIELD_MAX 256

struct s3_http;

struct s3_http_request {
    const char *method; /* GET, HEAD, PUT, POST or DELETE */
    const char *url;
    const char *const *headers; /* "name: value" */
    size_t header_count;
    const void *body; /* of PUT and POST */
    size_t body_bytes;
    void *into; /* where the body of a code 2xx goes; NULL: to the answer's text */
    size_t into_bytes;
};

struct s3_http_answer {
    int code;
    char etag[S3_HTTP_FIELD_MAX]; /* with its quotes; "" for each that did not come */
    char content_range[S3_HTTP_FIELD_MAX];
    char region[S3_HTTP_FIELD_MAX]; /* x-amz-bucket-region */
    int64_t date_s;                 /* the server's clock, since 1970; -1: not told */
    int64_t retry_after_s;          /* -1: not told */
    int64_t content_bytes;          /* Content-Length; -1: not told */
    size_t into_count;              /* bytes that came into `into` */
    char *text;                     /* any other body, with a 0 behind it; NULL: none */
    size_t text_count, text_capacity;
};

/* `ca_file`: a PEM file of trusted authorities; "": the system's. */
enum status s3_http_open(const char *ca_file, struct s3_http **out_http) STATUS_MUST_CHECK;
void s3_http_close(struct s3_http **http); /* takes NULL inside, leaves NULL */

/* IO and TIMEOUT: may go better the next time. NO_PERMISSION: the server's certificate is not
 * trusted. USAGE: the URL is none. The answer is to be freed in any case. */
enum status s3_http_send(struct s3_http *http, const struct s3_http_request *request,
                         struct s3_http_answer *out_answer) STATUS_MUST_CHECK;
void s3_http_answer_deinit(struct s3_http_answer *answer);

#endif
