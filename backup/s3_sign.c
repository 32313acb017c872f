/* Signature V4; see s3_sign.h. The steps have the names of Amazon's description: canonical request,
 * string to sign, signing key. */
#include "backup/s3_sign.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DIGEST_BYTES 32
#define SCOPE_MAX 160
#define SIGNED_MAX 1024

static const char hex_digits[] = "0123456789ABCDEF";

static bool is_plain(unsigned char letter)
{
    return (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z') ||
           (letter >= '0' && letter <= '9') || letter == '-' || letter == '_' || letter == '.' ||
           letter == '~';
}

enum status s3_sign_encode(const char *text, bool keep_slash, char *out_text, size_t capacity)
{
    size_t at = 0;

    for (const char *from = text; *from != '\0'; from++) {
        unsigned char letter = (unsigned char)*from;
        bool plain = is_plain(letter) || (keep_slash && letter == '/');
        if (at + (plain ? 1 : 3) >= capacity) {
            return FAIL(STATUS_USAGE, "'%.100s' is too long for a request", text);
        }
        if (plain) {
            out_text[at++] = *from;
        } else {
            out_text[at++] = '%';
            out_text[at++] = hex_digits[letter >> 4];
            out_text[at++] = hex_digits[letter & 15];
        }
    }
    out_text[at] = '\0';
    return STATUS_OK;
}

static int compare_pairs(const void *a, const void *b)
{
    return strcmp(((const struct s3_pair *)a)->name, ((const struct s3_pair *)b)->name);
}

/* Our names need no encoding and differ, so that their order is that of their encodings. */
enum status s3_sign_query(const struct s3_pair *params, size_t count, char *out_text,
                          size_t capacity)
{
    enum status st = STATUS_OK;
    struct s3_pair sorted[S3_SIGN_PAIRS_MAX];
    size_t at = 0;

    CHECK(count <= S3_SIGN_PAIRS_MAX && capacity > 0);
    out_text[0] = '\0';
    if (count == 0) {
        return STATUS_OK;
    }
    memcpy(sorted, params, count * sizeof *params);
    qsort(sorted, count, sizeof *sorted, compare_pairs);
    for (size_t i = 0; i < count; i++) {
        int length =
            snprintf(out_text + at, capacity - at, "%s%s=", i > 0 ? "&" : "", sorted[i].name);
        if (length < 0 || (size_t)length >= capacity - at) {
            return FAIL(STATUS_USAGE, "the query of a request is too long");
        }
        at += (size_t)length;
        TRY(st, s3_sign_encode(sorted[i].value, false, out_text + at, capacity - at), done);
        at += strlen(out_text + at);
    }
done:
    return st;
}

static void format_hex(const unsigned char digest[DIGEST_BYTES], char out_text[S3_SIGN_HASH_MAX])
{
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        (void)snprintf(out_text + 2 * i, 3, "%02x", digest[i]);
    }
}

void s3_sign_hash(const void *bytes, size_t count, char out_hash[S3_SIGN_HASH_MAX])
{
    unsigned char digest[EVP_MAX_MD_SIZE];

    CHECK(EVP_Digest(bytes, count, digest, NULL, EVP_sha256(), NULL) == 1);
    format_hex(digest, out_hash);
}

void s3_sign_format_date(int64_t time_s, char out_date[S3_SIGN_DATE_MAX])
{
    time_t when = (time_t)time_s;
    struct tm parts;

    CHECK(gmtime_r(&when, &parts) != NULL);
    CHECK(strftime(out_date, S3_SIGN_DATE_MAX, "%Y%m%dT%H%M%SZ", &parts) > 0);
}

static void add(EVP_MD_CTX *context, const char *text)
{
    CHECK(EVP_DigestUpdate(context, text, strlen(text)) == 1);
}

/* The hash of the canonical request; `headers` are sorted. */
static enum status hash_canonical(const struct s3_sign_request *request,
                                  const struct s3_pair *headers, const char *signed_names,
                                  char out_hash[S3_SIGN_HASH_MAX])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const char *lines[] = {request->method, "\n", request->path, "\n", request->query, "\n"};

    if (context == NULL || EVP_DigestInit_ex(context, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(context);
        return FAIL(STATUS_NO_MEMORY, "cannot allocate a hash");
    }
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        add(context, lines[i]);
    }
    for (size_t i = 0; i < request->header_count; i++) {
        add(context, headers[i].name);
        add(context, ":");
        add(context, headers[i].value);
        add(context, "\n");
    }
    add(context, "\n");
    add(context, signed_names);
    add(context, "\n");
    add(context, request->payload_hash);
    CHECK(EVP_DigestFinal_ex(context, digest, NULL) == 1);
    EVP_MD_CTX_free(context);
    format_hex(digest, out_hash);
    return STATUS_OK;
}

static void sign_text(unsigned char key[DIGEST_BYTES], const char *text)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned count = 0;

    CHECK(HMAC(EVP_sha256(), key, DIGEST_BYTES, (const unsigned char *)text, strlen(text), digest,
               &count) != NULL);
    memcpy(key, digest, DIGEST_BYTES);
}

static void make_signing_key(const char *secret, const char *day, const char *region,
                             unsigned char out_key[DIGEST_BYTES])
{
    char first[S3_KEY_MAX + 4];
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned count = 0;

    int length = snprintf(first, sizeof first, "AWS4%s", secret);
    CHECK(HMAC(EVP_sha256(), first, length, (const unsigned char *)day, strlen(day), digest,
               &count) != NULL);
    OPENSSL_cleanse(first, sizeof first);
    memcpy(out_key, digest, DIGEST_BYTES);
    sign_text(out_key, region);
    sign_text(out_key, "s3");
    sign_text(out_key, "aws4_request");
}

enum status s3_sign_authorize(const struct s3_sign_request *request,
                              const struct s3_credentials *credentials,
                              char out_text[S3_SIGN_TEXT_MAX])
{
    enum status st = STATUS_OK;
    struct s3_pair headers[S3_SIGN_PAIRS_MAX];
    char names[SIGNED_MAX] = "", hash[S3_SIGN_HASH_MAX], scope[SCOPE_MAX], day[9];
    char to_sign[SCOPE_MAX + S3_SIGN_HASH_MAX + 64], signature[S3_SIGN_HASH_MAX];
    unsigned char key[DIGEST_BYTES];
    size_t at = 0;

    CHECK(request->header_count <= S3_SIGN_PAIRS_MAX);
    memcpy(headers, request->headers, request->header_count * sizeof *headers);
    qsort(headers, request->header_count, sizeof *headers, compare_pairs);
    for (size_t i = 0; i < request->header_count; i++) {
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i > 0 ? ";" : "",
                               headers[i].name);
        CHECK(at < sizeof names);
    }
    (void)snprintf(day, sizeof day, "%.8s", request->date);
    int length = snprintf(scope, sizeof scope, "%s/%s/s3/aws4_request", day, request->region);
    if (length < 0 || (size_t)length >= sizeof scope) {
        return FAIL(STATUS_USAGE, "region '%.100s' is too long", request->region);
    }
    TRY(st, hash_canonical(request, headers, names, hash), done);
    (void)snprintf(to_sign, sizeof to_sign, "AWS4-HMAC-SHA256\n%s\n%s\n%s", request->date, scope,
                   hash);
    make_signing_key(credentials->secret_key, day, request->region, key);
    sign_text(key, to_sign);
    format_hex(key, signature);
    (void)snprintf(out_text, S3_SIGN_TEXT_MAX,
                   "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
                   credentials->access_key, scope, names, signature);
done:
    return st;
}
