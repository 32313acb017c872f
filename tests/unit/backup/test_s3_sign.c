/* Claims about signatures, encodings and checksums of S3 requests (backup/s3_sign, backup/crc32c),
 * held against Amazon's published examples. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "backup/crc32c.h"
#include "backup/s3_sign.h"
#include "tests/unit/meta/meta_support.h"

#define EMPTY_HASH "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* Of "Signature Calculations for the Authorization Header" in the S3 API reference. */
static const struct s3_credentials example_keys = {
    .access_key = "AKIAIOSFODNN7EXAMPLE",
    .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
};

static void assert_signature(const char *method, const char *path, const char *query,
                             const struct s3_pair *extra, size_t extra_count, const char *hash,
                             const char *names, const char *signature)
{
    struct s3_pair headers[S3_SIGN_PAIRS_MAX] = {
        {"x-amz-date", "20130524T000000Z"},
        {"x-amz-content-sha256", hash},
        {"host", "examplebucket.s3.amazonaws.com"},
    };
    char text[S3_SIGN_TEXT_MAX], expected[S3_SIGN_TEXT_MAX];

    for (size_t i = 0; i < extra_count; i++) {
        headers[3 + i] = extra[i];
    }
    struct s3_sign_request request = {
        .method = method,
        .path = path,
        .query = query,
        .headers = headers,
        .header_count = 3 + extra_count,
        .payload_hash = hash,
        .date = "20130524T000000Z",
        .region = "us-east-1",
    };
    assert_ok(s3_sign_authorize(&request, &example_keys, text));
    (void)snprintf(expected, sizeof expected,
                   "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"
                   "aws4_request, SignedHeaders=%s, Signature=%s",
                   names, signature);
    cr_assert_str_eq(text, expected);
}

Test(s3_sign, signs_amazons_get_of_a_range)
{
    struct s3_pair range = {"range", "bytes=0-9"};

    assert_signature("GET", "/test.txt", "", &range, 1, EMPTY_HASH,
                     "host;range;x-amz-content-sha256;x-amz-date",
                     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

Test(s3_sign, signs_amazons_put)
{
    struct s3_pair extra[] = {{"x-amz-storage-class", "REDUCED_REDUNDANCY"},
                              {"date", "Fri, 24 May 2013 00:00:00 GMT"}};
    char hash[S3_SIGN_HASH_MAX], path[64];

    s3_sign_hash("Welcome to Amazon S3.", 21, hash);
    assert_ok(s3_sign_encode("/test$file.text", true, path, sizeof path));
    assert_signature("PUT", path, "", extra, 2, hash,
                     "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

Test(s3_sign, signs_amazons_queries_with_and_without_values)
{
    struct s3_pair lifecycle = {"lifecycle", ""};
    struct s3_pair list[] = {{"prefix", "J"}, {"max-keys", "2"}}; /* sorted by s3_sign_query */
    char query[64];

    assert_ok(s3_sign_query(&lifecycle, 1, query, sizeof query));
    assert_signature("GET", "/", query, NULL, 0, EMPTY_HASH, "host;x-amz-content-sha256;x-amz-date",
                     "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    assert_ok(s3_sign_query(list, 2, query, sizeof query));
    assert_signature("GET", "/", query, NULL, 0, EMPTY_HASH, "host;x-amz-content-sha256;x-amz-date",
                     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

Test(s3_sign, encodes_all_but_the_plain_letters_once)
{
    char text[256];

    assert_ok(s3_sign_encode("step=10/a+b:c (1)~%41*\xc3\xbc.h5", true, text, sizeof text));
    cr_assert_str_eq(text, "step%3D10/a%2Bb%3Ac%20%281%29~%2541%2A%C3%BC.h5");
    assert_ok(s3_sign_encode("a/b", false, text, sizeof text));
    cr_assert_str_eq(text, "a%2Fb");
    assert_status(s3_sign_encode("\xff\xff", true, text, 6), STATUS_USAGE);
    assert_ok(s3_sign_encode("\xff\xff", true, text, 7));
}

Test(s3_sign, sorts_queries_and_keeps_a_sign_behind_each_name)
{
    struct s3_pair params[] = {{"uploads", ""}, {"prefix", "a/b c"}, {"max-uploads", "9"}};
    char query[64];

    assert_ok(s3_sign_query(params, 3, query, sizeof query));
    cr_assert_str_eq(query, "max-uploads=9&prefix=a%2Fb%20c&uploads=");
    assert_status(s3_sign_query(params, 3, query, 20), STATUS_USAGE);
}

Test(s3_sign, dates_are_utc)
{
    char date[S3_SIGN_DATE_MAX];

    s3_sign_format_date(1369353600, date);
    cr_assert_str_eq(date, "20130524T000000Z");
}

Test(crc32c, equals_the_published_values)
{
    unsigned char bytes[32];
    char text[CRC32C_TEXT_MAX];

    cr_assert_eq(crc32c_bytes("123456789", 9), 0xe3069283);
    memset(bytes, 0, sizeof bytes); /* RFC 3720, B.4 */
    cr_assert_eq(crc32c_bytes(bytes, sizeof bytes), 0x8a9136aa);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)i;
    }
    cr_assert_eq(crc32c_bytes(bytes, sizeof bytes), 0x46dd794e);
    crc32c_format(0xe3069283, text);
    cr_assert_str_eq(text, "4waSgw==");
}
