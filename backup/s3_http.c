/* HTTP by libcurl; see s3_http.h. */
#include "backup/s3_http.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/base/mem.h"

#define HANDLES_MAX 64 /* kept; more are made when more threads send at once */
#define CONNECT_TIMEOUT_S 15L
#define STALL_TIMEOUT_S 60L /* not one byte in so long a time */
#define COPY_BUFFER_BYTES (256L << 10)

struct s3_http {
    char *ca_file; /* "": the system's */
    pthread_mutex_t mutex;
    CURL *idle[HANDLES_MAX];
    size_t idle_count;
};

struct exchange {
    CURL *curl;
    const struct s3_http_request *request;
    struct s3_http_answer *answer;
    size_t sent;
    enum status st; /* why a callback stopped the transfer */
};

enum status s3_http_open(const char *ca_file, struct s3_http **out_http)
{
    enum status st = STATUS_OK;
    struct s3_http *http = NULL;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return FAIL(STATUS_FAILED, "libcurl cannot be started");
    }
    TRY(st, mem_alloc(&http, 1, sizeof *http), done);
    (void)pthread_mutex_init(&http->mutex, NULL);
    TRY(st, mem_copy_string(&http->ca_file, ca_file), done);
done:
    if (st == STATUS_OK) {
        *out_http = http;
    } else {
        mem_free(&http);
        curl_global_cleanup();
    }
    return st;
}

void s3_http_close(struct s3_http **http)
{
    if (*http != NULL) {
        for (size_t i = 0; i < (*http)->idle_count; i++) {
            curl_easy_cleanup((*http)->idle[i]);
        }
        (void)pthread_mutex_destroy(&(*http)->mutex);
        mem_free(&(*http)->ca_file);
        mem_free(http);
        curl_global_cleanup();
    }
}

static CURL *take_handle(struct s3_http *http)
{
    CURL *curl = NULL;

    (void)pthread_mutex_lock(&http->mutex);
    if (http->idle_count > 0) {
        curl = http->idle[--http->idle_count];
    }
    (void)pthread_mutex_unlock(&http->mutex);
    return curl != NULL ? curl : curl_easy_init();
}

/* With its open connections, which the next request uses. */
static void give_handle(struct s3_http *http, CURL *curl)
{
    curl_easy_reset(curl);
    (void)pthread_mutex_lock(&http->mutex);
    if (http->idle_count < HANDLES_MAX) {
        http->idle[http->idle_count++] = curl;
        curl = NULL;
    }
    (void)pthread_mutex_unlock(&http->mutex);
    curl_easy_cleanup(curl);
}

static size_t on_send(char *buffer, size_t size, size_t count, void *data)
{
    struct exchange *exchange = data;
    size_t left = exchange->request->body_bytes - exchange->sent;
    size_t now = size * count < left ? size * count : left;

    memcpy(buffer, (const char *)exchange->request->body + exchange->sent, now);
    exchange->sent += now;
    return now;
}

/* A kept connection that the server had closed: the body is sent again from its beginning. */
static int on_seek(void *data, curl_off_t offset, int origin)
{
    struct exchange *exchange = data;

    if (origin != SEEK_SET || offset < 0 || (size_t)offset > exchange->request->body_bytes) {
        return CURL_SEEKFUNC_FAIL;
    }
    exchange->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

static enum status add_text(struct s3_http_answer *answer, const char *bytes, size_t count)
{
    enum status st = STATUS_OK;

    if (answer->text_count + count >= S3_HTTP_TEXT_MAX) {
        return FAIL(STATUS_BAD_DATA, "the server's answer has more than %zu bytes",
                    S3_HTTP_TEXT_MAX);
    }
    TRY(st,
        mem_grow((void **)&answer->text, &answer->text_capacity, answer->text_count + count + 1, 1),
        done);
    memcpy(answer->text + answer->text_count, bytes, count);
    answer->text_count += count;
    answer->text[answer->text_count] = '\0';
done:
    return st;
}

static size_t on_receive(char *bytes, size_t size, size_t count, void *data)
{
    struct exchange *exchange = data;
    struct s3_http_answer *answer = exchange->answer;
    size_t now = size * count;
    long code = 0;

    (void)curl_easy_getinfo(exchange->curl, CURLINFO_RESPONSE_CODE, &code);
    if (exchange->request->into == NULL || code / 100 != 2) {
        exchange->st = add_text(answer, bytes, now);
    } else if (now > exchange->request->into_bytes - answer->into_count) {
        exchange->st =
            FAIL(STATUS_IO, "the server sends more than the %zu bytes that were asked for",
                 exchange->request->into_bytes);
    } else {
        memcpy((char *)exchange->request->into + answer->into_count, bytes, now);
        answer->into_count += now;
    }
    return exchange->st == STATUS_OK ? now : 0;
}

static void copy_field(char out_field[S3_HTTP_FIELD_MAX], const char *value, size_t length)
{
    if (length < S3_HTTP_FIELD_MAX) {
        memcpy(out_field, value, length);
        out_field[length] = '\0';
    }
}

static int64_t parse_seconds(const char *text)
{
    char *end = NULL;
    long long value = strtoll(text, &end, 10);

    return end != text && *end == '\0' && value >= 0 ? value : -1;
}

static size_t on_header(char *bytes, size_t size, size_t count, void *data)
{
    struct exchange *exchange = data;
    struct s3_http_answer *answer = exchange->answer;
    char line[S3_HTTP_FIELD_MAX + 64], *value;
    size_t length = size * count;

    if (length >= 5 && strncmp(bytes, "HTTP/", 5) == 0) { /* what stood before was an interim one */
        answer->etag[0] = answer->content_range[0] = answer->region[0] = '\0';
        answer->date_s = answer->retry_after_s = -1;
        return length;
    }
    if (length >= sizeof line) {
        return length; /* none of ours is so long */
    }
    memcpy(line, bytes, length);
    line[length] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    value = strchr(line, ':');
    if (value == NULL) {
        return length;
    }
    *value++ = '\0';
    value += strspn(value, " \t");
    size_t end = strlen(value);
    while (end > 0 && (value[end - 1] == ' ' || value[end - 1] == '\t')) {
        value[--end] = '\0';
    }
    if (strcasecmp(line, "etag") == 0) {
        copy_field(answer->etag, value, end);
    } else if (strcasecmp(line, "content-range") == 0) {
        copy_field(answer->content_range, value, end);
    } else if (strcasecmp(line, "x-amz-bucket-region") == 0) {
        copy_field(answer->region, value, end);
    } else if (strcasecmp(line, "date") == 0) {
        answer->date_s = (int64_t)curl_getdate(value, NULL);
    } else if (strcasecmp(line, "retry-after") == 0) {
        answer->retry_after_s = parse_seconds(value);
    }
    return length;
}

/* curl_easy_setopt fails for want of memory only, and curl_easy_perform would then, too. */
#define SET(curl, option, value) (void)curl_easy_setopt((curl), (option), (value))

static void set_method(CURL *curl, struct exchange *exchange)
{
    const struct s3_http_request *request = exchange->request;

    if (strcmp(request->method, "HEAD") == 0) {
        SET(curl, CURLOPT_NOBODY, 1L);
    } else if (strcmp(request->method, "PUT") == 0) {
        SET(curl, CURLOPT_UPLOAD, 1L);
        SET(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->body_bytes);
        SET(curl, CURLOPT_READFUNCTION, on_send);
        SET(curl, CURLOPT_READDATA, exchange);
        SET(curl, CURLOPT_SEEKFUNCTION, on_seek);
        SET(curl, CURLOPT_SEEKDATA, exchange);
    } else if (strcmp(request->method, "POST") == 0) {
        SET(curl, CURLOPT_POST, 1L);
        SET(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body_bytes);
        SET(curl, CURLOPT_POSTFIELDS, request->body != NULL ? request->body : "");
    } else {
        SET(curl, CURLOPT_CUSTOMREQUEST, request->method);
    }
}

static void set_options(const struct s3_http *http, CURL *curl, struct exchange *exchange,
                        struct curl_slist *headers, char error[CURL_ERROR_SIZE])
{
    set_method(curl, exchange);
    SET(curl, CURLOPT_URL, exchange->request->url);
    SET(curl, CURLOPT_PATH_AS_IS, 1L); /* the signed path, byte for byte */
    SET(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    SET(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(curl, CURLOPT_HTTPHEADER, headers);
    SET(curl, CURLOPT_NOSIGNAL, 1L);
    SET(curl, CURLOPT_WRITEFUNCTION, on_receive);
    SET(curl, CURLOPT_WRITEDATA, exchange);
    SET(curl, CURLOPT_HEADERFUNCTION, on_header);
    SET(curl, CURLOPT_HEADERDATA, exchange);
    SET(curl, CURLOPT_ERRORBUFFER, error);
    SET(curl, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S);
    SET(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    SET(curl, CURLOPT_LOW_SPEED_TIME, STALL_TIMEOUT_S);
    SET(curl, CURLOPT_BUFFERSIZE, COPY_BUFFER_BYTES);
    SET(curl, CURLOPT_UPLOAD_BUFFERSIZE, COPY_BUFFER_BYTES);
    SET(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    if (http->ca_file[0] != '\0') {
        SET(curl, CURLOPT_CAINFO, http->ca_file);
    }
}

static enum status fail_of(CURLcode result, const struct exchange *exchange, const char *error)
{
    const char *text = error[0] != '\0' ? error : curl_easy_strerror(result);
    const char *url = exchange->request->url;

    if (exchange->st != STATUS_OK) {
        return exchange->st;
    }
    int host = (int)(strcspn(url, ":/") + 3 < strlen(url) ? strcspn(url, ":/") + 3 : 0);
    host += (int)strcspn(url + host, "/?"); /* scheme and host are enough to name the place */
    switch (result) {
    case CURLE_OPERATION_TIMEDOUT:
        return FAIL(STATUS_TIMEOUT, "no answer from '%.*s': %s", host, url, text);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return FAIL(STATUS_NO_PERMISSION,
                    "the certificate of '%.*s' is not trusted (%s); name a file of its authority "
                    "by --ca or AWS_CA_BUNDLE",
                    host, url, text);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        return FAIL(STATUS_USAGE, "'%s' is no address of a server: %s", url, text);
    case CURLE_OUT_OF_MEMORY:
        return FAIL(STATUS_NO_MEMORY, "cannot allocate a request to '%.*s'", host, url);
    default:
        return FAIL(STATUS_IO, "no whole answer from '%.*s': %s", host, url, text);
    }
}

static enum status make_headers(const struct s3_http_request *request, struct curl_slist **out_list)
{
    struct curl_slist *list = curl_slist_append(NULL, "Expect:"), *longer = list;

    for (size_t i = 0; longer != NULL && i < request->header_count; i++) {
        longer = curl_slist_append(list, request->headers[i]);
    }
    *out_list = list;
    return longer != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "cannot allocate headers");
}

enum status s3_http_send(struct s3_http *http, const struct s3_http_request *request,
                         struct s3_http_answer *out_answer)
{
    enum status st = STATUS_OK;
    struct exchange exchange = {.request = request, .answer = out_answer, .st = STATUS_OK};
    struct curl_slist *headers = NULL;
    char error[CURL_ERROR_SIZE] = "";
    CURL *curl = take_handle(http);

    *out_answer = (struct s3_http_answer){
        .date_s = -1, .retry_after_s = -1, .content_bytes = -1, .text = NULL};
    if (curl == NULL) {
        return FAIL(STATUS_NO_MEMORY, "cannot allocate a connection");
    }
    exchange.curl = curl;
    TRY(st, make_headers(request, &headers), done);
    set_options(http, curl, &exchange, headers, error);
    CURLcode result = curl_easy_perform(curl);
    if (result != CURLE_OK) {
        st = fail_of(result, &exchange, error);
        goto done;
    }
    long code = 0;
    curl_off_t length = -1;
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    (void)curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    out_answer->code = (int)code;
    out_answer->content_bytes = (int64_t)length;
done:
    give_handle(http, curl);
    curl_slist_free_all(headers);
    return st;
}

void s3_http_answer_deinit(struct s3_http_answer *answer)
{
    mem_free(&answer->text);
    answer->text_count = answer->text_capacity = 0;
}
