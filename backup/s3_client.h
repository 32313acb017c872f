/* One S3 request from what is asked to what it means: signed, sent, tried again, its refusal turned
 * into a status.
 *
 * Before it: store_s3, s3_upload. After it: s3_sign, s3_http, s3_xml, s3_config. Two things are
 * told apart: what may go better later (a busy or broken server, a lost connection) is tried again
 * S3_CLIENT_TRIES times with growing, jittered pauses or as long as the server asks for; what this
 * side had wrong is mended at once, each thing once a request: a clock that is off (taken from the
 * Date header), keys that another program has renewed, the bucket's region, a checksum header that
 * the server does not know.
 * Threads: s3_client_call by several at once.
 */
#ifndef BACKUP_S3_CLIENT_H
#define BACKUP_S3_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "backup/s3_config.h"
#include "backup/s3_http.h"
#include "backup/s3_sign.h"
#include "backup/store.h"
#include "ckpt/base/status.h"

#define S3_CLIENT_TRIES 6
#define S3_CLIENT_PARAMS_MAX 6
#define S3_CLIENT_HEADERS_MAX 2
#define S3_CLIENT_CODE_MAX 64
#define S3_KEY_BYTES_MAX 1024 /* of an object, by the protocol */

enum s3_checksum {
    S3_CHECKSUM_NONE,
    S3_CHECKSUM_DECLARE, /* of the parts to come: CRC32C */
    S3_CHECKSUM_SEND     /* the body's CRC32C */
};

struct s3_call {
    const char *method;
    const char *key; /* the whole key of an object; NULL: the bucket */
    struct s3_pair params[S3_CLIENT_PARAMS_MAX];
    size_t param_count;
    struct s3_pair headers[S3_CLIENT_HEADERS_MAX]; /* names in lower case */
    size_t header_count;
    const void *body;
    size_t body_bytes;
    enum s3_checksum checksum;
    void *into; /* see s3_http.h */
    size_t into_bytes;
};

struct s3_reply {
    struct s3_http_answer answer;
    int tries;                     /* more than 1: an earlier one may have been done nevertheless */
    char code[S3_CLIENT_CODE_MAX]; /* "NoSuchKey", when the server refused and told why */
};

struct s3_client;

enum status s3_client_open(const char *bucket, const struct store_options *options,
                           struct s3_client **out_client) STATUS_MUST_CHECK;
void s3_client_close(struct s3_client **client); /* takes NULL inside, leaves NULL */

/* STATUS_OK only for a code 2xx. The reply is to be freed in any case; its code and tries are valid
 * after a failure, too. */
enum status s3_client_call(struct s3_client *client, const struct s3_call *call,
                           struct s3_reply *out_reply) STATUS_MUST_CHECK;
void s3_reply_deinit(struct s3_reply *reply);

/* Whether checksums are sent to this server, as far as is known. */
bool s3_client_sends_checksums(struct s3_client *client);
/* "http://127.0.0.1:9000 bucket": what tells one bucket from all others. */
const char *s3_client_place(const struct s3_client *client);
/* The time by the server's clock, as far as it is known. */
int64_t s3_client_now_s(struct s3_client *client);
/* The status of an answer that refuses; fills reply->code. For answers of code 200 that do. */
enum status s3_client_refusal(const struct s3_client *client, const struct s3_call *call,
                              struct s3_reply *reply);
/* A pause before the try after the `tries`-th. */
void s3_client_pause(int tries, int64_t retry_after_s);

#endif
