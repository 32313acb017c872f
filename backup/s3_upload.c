/* Uploads; see s3_upload.h.
 *
 *     journal -> create -> part 1 .. n -> complete -> journal's entry removed
 *                    any failure: abort (the entry stays when that fails, too)
 */
#include "backup/s3_upload.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backup/crc32c.h"
#include "backup/s3_journal.h"
#include "backup/s3_xml.h"
#include "ckpt/base/mem.h"

#define MIB ((uint64_t)1 << 20)
#define COMPLETE_TRIES 4
#define PART_XML_MAX (S3_HTTP_FIELD_MAX * 6 + 200) /* each byte of an ETag may become an entity */

struct upload {
    struct s3_client *client;
    const char *key;
    const struct store_source *source;
    uint64_t part_bytes;
    void *buffer; /* one part */
    bool with_checksums;
    char id[S3_UPLOAD_ID_MAX];
    char *xml; /* the body of the completion */
    size_t xml_length, xml_capacity;
    struct s3_journal_entry *entry;
};

enum status s3_upload_plan(uint64_t bytes, uint64_t *out_part_bytes)
{
    uint64_t least = bytes / S3_PART_COUNT_MAX + (bytes % S3_PART_COUNT_MAX != 0);
    uint64_t part = (least + MIB - 1) / MIB * MIB;

    if (part > S3_PART_BYTES_MAX) {
        return FAIL(STATUS_USAGE, "an object of %llu bytes is more than %d parts can hold",
                    (unsigned long long)bytes, S3_PART_COUNT_MAX);
    }
    *out_part_bytes = part > S3_PART_BYTES_MIN ? part : S3_PART_BYTES_MIN;
    return STATUS_OK;
}

static enum status put_single(struct upload *upload)
{
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    struct s3_call call = {
        .method = "PUT",
        .key = upload->key,
        .body = upload->buffer,
        .body_bytes = (size_t)upload->source->bytes,
        .checksum = S3_CHECKSUM_SEND,
    };

    if (call.body_bytes > 0) {
        TRY(st, upload->source->read(upload->source->context, upload->buffer, call.body_bytes, 0),
            done);
    }
    TRY(st, s3_client_call(upload->client, &call, &reply), done);
done:
    s3_reply_deinit(&reply);
    return st;
}

static enum status create(struct upload *upload)
{
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    struct s3_call call = {
        .method = "POST",
        .key = upload->key,
        .params = {{"uploads", ""}},
        .param_count = 1,
        .checksum = S3_CHECKSUM_DECLARE,
    };

    TRY(st, s3_client_call(upload->client, &call, &reply), done);
    upload->with_checksums = s3_client_sends_checksums(upload->client);
    s3_xml_find(reply.answer.text, reply.answer.text_count, "*/UploadId",
                /* rclone has another root */ upload->id, sizeof upload->id);
    if (upload->id[0] == '\0' || strchr(upload->id, '\n') != NULL) {
        st = FAIL(STATUS_IO, "the server began an upload of '%s' and gave it no name", upload->key);
        goto done;
    }
    TRY(st, s3_journal_note(upload->entry, upload->id), done);
done:
    s3_reply_deinit(&reply);
    return st;
}

__attribute__((format(printf, 2, 3))) static enum status add_xml(struct upload *upload,
                                                                 const char *format, ...)
{
    enum status st = STATUS_OK;
    va_list arguments;

    TRY(st,
        mem_grow((void **)&upload->xml, &upload->xml_capacity, upload->xml_length + PART_XML_MAX,
                 1),
        done);
    va_start(arguments, format);
    int length = vsnprintf(upload->xml + upload->xml_length, PART_XML_MAX, format, arguments);
    va_end(arguments);
    CHECK(length >= 0 && length < PART_XML_MAX);
    upload->xml_length += (size_t)length;
done:
    return st;
}

/* The server's word goes back to it, but not as markup. */
static void escape(const char *text, char out_text[S3_HTTP_FIELD_MAX * 6])
{
    size_t at = 0;

    for (; *text != '\0'; text++) {
        const char *entity = *text == '&'   ? "&amp;"
                             : *text == '<' ? "&lt;"
                             : *text == '>' ? "&gt;"
                                            : NULL;
        if (entity != NULL) {
            memcpy(out_text + at, entity, strlen(entity));
            at += strlen(entity);
        } else {
            out_text[at++] = *text;
        }
    }
    out_text[at] = '\0';
}

static enum status send_part(struct upload *upload, unsigned number)
{
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    uint64_t offset = (uint64_t)(number - 1) * upload->part_bytes;
    uint64_t left = upload->source->bytes - offset;
    char number_text[16], etag[S3_HTTP_FIELD_MAX * 6], checksum[CRC32C_TEXT_MAX];
    struct s3_call call = {
        .method = "PUT",
        .key = upload->key,
        .params = {{"partNumber", number_text}, {"uploadId", upload->id}},
        .param_count = 2,
        .body = upload->buffer,
        .body_bytes = (size_t)(left < upload->part_bytes ? left : upload->part_bytes),
        .checksum = upload->with_checksums ? S3_CHECKSUM_SEND : S3_CHECKSUM_NONE,
    };

    (void)snprintf(number_text, sizeof number_text, "%u", number);
    TRY(st, upload->source->read(upload->source->context, upload->buffer, call.body_bytes, offset),
        done);
    TRY(st, s3_client_call(upload->client, &call, &reply), done);
    if (reply.answer.etag[0] == '\0') {
        st = FAIL(STATUS_IO, "the server took part %u of '%s' and gave it no ETag", number,
                  upload->key);
        goto done;
    }
    escape(reply.answer.etag, etag);
    TRY(st, add_xml(upload, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag>", number, etag),
        done);
    if (call.checksum == S3_CHECKSUM_SEND && s3_client_sends_checksums(upload->client)) {
        crc32c_format(crc32c_bytes(upload->buffer, call.body_bytes), checksum);
        TRY(st, add_xml(upload, "<ChecksumCRC32C>%s</ChecksumCRC32C>", checksum), done);
    }
    TRY(st, add_xml(upload, "</Part>"), done);
done:
    s3_reply_deinit(&reply);
    return st;
}

static enum status check_size(struct upload *upload)
{
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    struct s3_call call = {.method = "HEAD", .key = upload->key};

    TRY(st, s3_client_call(upload->client, &call, &reply), done);
    if (reply.answer.content_bytes != (int64_t)upload->source->bytes) {
        st = FAIL(STATUS_IO, "the upload of '%s' is gone and left no object", upload->key);
    }
done:
    s3_reply_deinit(&reply);
    return st;
}

/* A server that needs minutes answers 200 at once and tells behind it how it went. */
static enum status complete_once(struct upload *upload, bool *out_lost)
{
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    char etag[S3_HTTP_FIELD_MAX];
    struct s3_call call = {
        .method = "POST",
        .key = upload->key,
        .params = {{"uploadId", upload->id}},
        .param_count = 1,
        .body = upload->xml,
        .body_bytes = upload->xml_length,
    };

    *out_lost = false;
    st = s3_client_call(upload->client, &call, &reply);
    if (st == STATUS_NOT_FOUND && strcmp(reply.code, "NoSuchBucket") != 0) {
        *out_lost = true;
        if (reply.tries == 1) { /* somebody has aborted it */
            st = FAIL(STATUS_IO, "the upload of '%s' is gone before it was completed", upload->key);
        }
    }
    TRY(st, st, done);
    s3_xml_find(reply.answer.text, reply.answer.text_count, "CompleteMultipartUploadResult/ETag",
                etag, sizeof etag);
    if (etag[0] == '\0') {
        (void)s3_client_refusal(upload->client, &call, &reply);
        st =
            FAIL(STATUS_IO, "the server answers 200 to the completion of '%s' without a result%s%s",
                 upload->key, reply.code[0] != '\0' ? ": " : "", reply.code);
    }
done:
    s3_reply_deinit(&reply);
    return st;
}

static enum status complete(struct upload *upload)
{
    enum status st = STATUS_OK;
    bool lost = false;

    TRY(st, add_xml(upload, "</CompleteMultipartUpload>"), done);
    for (int attempt = 1;; attempt++) {
        st = complete_once(upload, &lost);
        if (st == STATUS_OK) {
            return STATUS_OK;
        }
        if (lost && (st == STATUS_NOT_FOUND || attempt > 1)) {
            /* An earlier try was done though its answer did not come. */
            TRY(st, check_size(upload), done);
            return STATUS_OK;
        }
        if (lost || st != STATUS_IO || attempt == COMPLETE_TRIES) {
            break;
        }
        s3_client_pause(attempt, -1);
    }
done:
    return st;
}

enum status s3_upload_abort(struct s3_client *client, const char *key, const char *upload_id)
{
    enum status st = STATUS_OK;
    struct s3_reply reply = {.tries = 0};
    struct s3_call call = {
        .method = "DELETE",
        .key = key,
        .params = {{"uploadId", upload_id}},
        .param_count = 1,
    };

    st = s3_client_call(client, &call, &reply);
    s3_reply_deinit(&reply);
    return st == STATUS_NOT_FOUND ? STATUS_OK : st;
}

static enum status put_multipart(struct upload *upload)
{
    enum status st = STATUS_OK;
    uint64_t count = (upload->source->bytes + upload->part_bytes - 1) / upload->part_bytes;

    CHECK(count <= S3_PART_COUNT_MAX);
    TRY(st, s3_journal_begin(s3_client_place(upload->client), upload->key, &upload->entry), done);
    TRY(st, create(upload), done);
    TRY(st,
        add_xml(upload, "<CompleteMultipartUpload "
                        "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"),
        done);
    for (unsigned number = 1; number <= count; number++) {
        TRY(st, send_part(upload, number), done);
    }
    TRY(st, complete(upload), done);
done:
    if (st == STATUS_OK) {
        s3_journal_end(&upload->entry, true);
        return STATUS_OK;
    }
    struct status_record why;
    status_take(&why);
    bool aborted = upload->id[0] != '\0' &&
                   s3_upload_abort(upload->client, upload->key, upload->id) == STATUS_OK;
    s3_journal_end(&upload->entry, aborted);
    return status_give(&why);
}

enum status s3_upload_put(struct s3_client *client, const char *key,
                          const struct store_source *source)
{
    enum status st = STATUS_OK;
    struct upload *upload = NULL;

    TRY(st, mem_alloc(&upload, 1, sizeof *upload), done);
    upload->client = client;
    upload->key = key;
    upload->source = source;
    TRY(st, s3_upload_plan(source->bytes, &upload->part_bytes), done);
    bool single = source->bytes <= upload->part_bytes;
    TRY(st, mem_alloc(&upload->buffer, single ? source->bytes : upload->part_bytes, 1), done);
    if (single) {
        TRY(st, put_single(upload), done);
    } else {
        TRY(st, put_multipart(upload), done);
    }
done:
    if (upload != NULL) {
        mem_free(&upload->buffer);
        mem_free(&upload->xml);
    }
    mem_free(&upload);
    return st;
}
