/* Signature V4 of S3 requests, and the strict encoding that it signs: pure functions.
 *
 * Before it: s3_client (what to ask). After it: s3_http (how it is sent). Own code and not
 * libcurl's signer, because that one signs paths, queries and headers wrongly in other ways in each
 * of the versions in use. What is signed is sent as it was signed: path and query are encoded once
 * (all but A-Z a-z 0-9 - _ . ~, and '/' in paths; upper-case hexadecimal), the query is sorted and
 * has a '=' behind every name.
 */
#ifndef BACKUP_S3_SIGN_H
#define BACKUP_S3_SIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define S3_SIGN_PAIRS_MAX 16
#define S3_SIGN_DATE_MAX 17   /* "20130524T000000Z" */
#define S3_SIGN_HASH_MAX 65   /* 64 hexadecimal digits and a 0 */
#define S3_SIGN_TEXT_MAX 2048 /* of an Authorization value */
#define S3_SIGN_UNSIGNED "UNSIGNED-PAYLOAD"

#define S3_KEY_MAX 256
#define S3_TOKEN_MAX 4096

struct s3_credentials {
    char access_key[S3_KEY_MAX];
    char secret_key[S3_KEY_MAX];
    char token[S3_TOKEN_MAX]; /* "": none */
};

struct s3_pair {
    const char *name;
    const char *value;
};

struct s3_sign_request {
    const char *method;
    const char *path;  /* encoded, from the first '/' */
    const char *query; /* of s3_sign_query */
    /* All that is signed, with host and x-amz-date; names in lower case, none twice; values without
     * spaces at their ends or two in a row. */
    const struct s3_pair *headers;
    size_t header_count;
    const char *payload_hash; /* the same as x-amz-content-sha256 */
    const char *date;
    const char *region;
};

/* Too small a buffer is STATUS_USAGE. */
enum status s3_sign_encode(const char *text, bool keep_slash, char *out_text, size_t capacity)
    STATUS_MUST_CHECK;
/* "a=1&b=" of raw names and values. */
enum status s3_sign_query(const struct s3_pair *params, size_t count, char *out_text,
                          size_t capacity) STATUS_MUST_CHECK;
/* SHA-256 of bytes in lower-case hexadecimal. */
void s3_sign_hash(const void *bytes, size_t count, char out_hash[S3_SIGN_HASH_MAX]);
void s3_sign_format_date(int64_t time_s, char out_date[S3_SIGN_DATE_MAX]);
/* The value of the Authorization header. */
enum status s3_sign_authorize(const struct s3_sign_request *request,
                              const struct s3_credentials *credentials,
                              char out_text[S3_SIGN_TEXT_MAX]) STATUS_MUST_CHECK;

#endif
