/* The HTTP server of tests; see http_stub.h. */
#include "tests/support/http_stub.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ckpt/base/mem.h"
#include "ckpt/base/thread.h"

#define BODY_MAX ((size_t)32 << 20)

struct http_stub {
    int listener;
    http_stub_fn answer;
    void *context;
    struct thread_task *task;
    struct http_stub_request request;
    struct http_stub_answer reply;
    char *body;
    char url[64];
};

void http_stub_header(const struct http_stub_request *request, const char *name, char *out_value,
                      size_t capacity)
{
    size_t length = strlen(name);

    out_value[0] = '\0';
    for (const char *line = strstr(request->head, "\r\n"); line != NULL;
         line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, length) == 0 && line[length] == ':') {
            const char *value = line + length + 1 + strspn(line + length + 1, " ");
            (void)snprintf(out_value, capacity, "%.*s", (int)strcspn(value, "\r\n"), value);
            return;
        }
    }
}

void http_stub_say(struct http_stub_answer *answer, int code, const char *headers, const char *body)
{
    int length =
        snprintf(answer->bytes, sizeof answer->bytes,
                 "HTTP/1.1 %d Said\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n%s", code,
                 strlen(body), headers, body);

    CHECK(length > 0 && (size_t)length < sizeof answer->bytes);
    answer->count = (size_t)length;
}

/* Reads until the head is whole; the body's begin may have come with it. */
static bool read_request(struct http_stub *stub, int fd)
{
    struct http_stub_request *request = &stub->request;
    size_t have = 0, wanted = 0;
    char *end = NULL, length[32];

    while (end == NULL) {
        ssize_t now = read(fd, request->head + have, sizeof request->head - 1 - have);
        if (now <= 0) {
            return false;
        }
        have += (size_t)now;
        request->head[have] = '\0';
        end = strstr(request->head, "\r\n\r\n");
    }
    request->body = stub->body;
    request->body_bytes = have - (size_t)(end + 4 - request->head);
    memcpy(stub->body, end + 4, request->body_bytes);
    end[2] = '\0';
    http_stub_header(request, "content-length", length, sizeof length);
    wanted = (size_t)strtoull(length, NULL, 10);
    CHECK(wanted <= BODY_MAX);
    while (request->body_bytes < wanted) {
        ssize_t now = read(fd, stub->body + request->body_bytes, wanted - request->body_bytes);
        if (now <= 0) {
            return false;
        }
        request->body_bytes += (size_t)now;
    }
    return true;
}

static void serve(struct http_stub *stub, int fd)
{
    if (read_request(stub, fd)) {
        stub->reply.count = 0;
        stub->answer(stub->context, &stub->request, &stub->reply);
        for (size_t at = 0; at < stub->reply.count;) {
            ssize_t now = send(fd, stub->reply.bytes + at, stub->reply.count - at, MSG_NOSIGNAL);
            if (now <= 0) {
                break;
            }
            at += (size_t)now;
        }
    }
    (void)shutdown(fd, SHUT_WR);
    (void)close(fd);
}

/* Until http_stub_stop shuts the listener down. */
static enum status run(void *context)
{
    struct http_stub *stub = context;

    for (;;) {
        int fd = accept(stub->listener, NULL, NULL);
        if (fd < 0) {
            return STATUS_OK;
        }
        serve(stub, fd);
    }
}

enum status http_stub_start(http_stub_fn answer, void *context, struct http_stub **out_stub)
{
    enum status st = STATUS_OK;
    struct http_stub *stub = NULL;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;

    TRY(st, mem_alloc(&stub, 1, sizeof *stub), done);
    TRY(st, mem_alloc(&stub->body, BODY_MAX, 1), done);
    stub->answer = answer;
    stub->context = context;
    stub->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (stub->listener < 0 || bind(stub->listener, (struct sockaddr *)&address, size) != 0 ||
        listen(stub->listener, 16) != 0 ||
        getsockname(stub->listener, (struct sockaddr *)&address, &size) != 0) {
        st = FAIL_ERRNO("cannot listen on the loopback");
        goto done;
    }
    (void)snprintf(stub->url, sizeof stub->url, "http://127.0.0.1:%d", ntohs(address.sin_port));
    TRY(st, thread_task_start(run, stub, &stub->task), done);
done:
    *out_stub = stub;
    if (st != STATUS_OK) {
        http_stub_stop(out_stub);
    }
    return st;
}

void http_stub_stop(struct http_stub **stub)
{
    if (*stub != NULL) {
        (void)shutdown((*stub)->listener, SHUT_RDWR);
        (void)!thread_task_join((*stub)->task);
        (void)close((*stub)->listener);
        mem_free(&(*stub)->body);
        mem_free(stub);
    }
}

const char *http_stub_url(const struct http_stub *stub)
{
    return stub->url;
}
