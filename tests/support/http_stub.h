/* A small HTTP server that answers as a test says: the misbehaviour that no real server shows on
 * request. It listens on the loopback, takes one request a connection, one after the other. */
#ifndef TESTS_SUPPORT_HTTP_STUB_H
#define TESTS_SUPPORT_HTTP_STUB_H

#include <stddef.h>

#include "ckpt/base/status.h"

#define HTTP_STUB_HEAD_MAX 16384
#define HTTP_STUB_ANSWER_MAX ((size_t)1 << 20)

struct http_stub_request {
    char head[HTTP_STUB_HEAD_MAX]; /* the request line and the headers, as they came */
    const char *body;
    size_t body_bytes;
};

struct http_stub_answer {
    char bytes[HTTP_STUB_ANSWER_MAX];
    size_t count; /* 0: the connection is closed without a word */
};

typedef void (*http_stub_fn)(void *context, const struct http_stub_request *request,
                             struct http_stub_answer *out_answer);

struct http_stub;

/* `answer` runs in the stub's thread, never twice at once. */
enum status http_stub_start(http_stub_fn answer, void *context, struct http_stub **out_stub)
    STATUS_MUST_CHECK;
void http_stub_stop(struct http_stub **stub);
const char *http_stub_url(const struct http_stub *stub); /* "http://127.0.0.1:PORT" */

/* A whole answer; `headers` is "" or lines that end in "\r\n". Content-Length is the body's. */
void http_stub_say(struct http_stub_answer *answer, int code, const char *headers,
                   const char *body);
/* The value of a request's header into a buffer; "" when there is none. */
void http_stub_header(const struct http_stub_request *request, const char *name, char *out_value,
                      size_t capacity);

#endif
