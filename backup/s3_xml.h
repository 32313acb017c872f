/* The XML answers of S3 servers, read by expat as what they are: hostile until parsed.
 *
 * Before it: s3_http. After it: s3_client (errors), store_s3 (lists), s3_upload. Document types and
 * with them entities are refused, depth and text are limited.
 */
#ifndef BACKUP_S3_XML_H
#define BACKUP_S3_XML_H

#include <stddef.h>

#include "ckpt/base/status.h"

#define S3_XML_PATH_MAX 256
#define S3_XML_TEXT_MAX 8192

/* The end of an element: `path` is "ListBucketResult/Contents/Key", `text` what stands directly in
 * it. A status ends the walk. */
typedef enum status (*s3_xml_fn)(void *context, const char *path, const char *text);

/* STATUS_BAD_DATA: not well-formed, too deep, too long, empty. */
enum status s3_xml_walk(const char *bytes, size_t count, s3_xml_fn on_element, void *context)
    STATUS_MUST_CHECK;
/* Copies the text of the first element at `path` that has one; "" when there is none or it does not
 * fit. "*" before a '/' stands for any root. A document that cannot be parsed counts as empty. */
void s3_xml_find(const char *bytes, size_t count, const char *path, char *out_text,
                 size_t capacity);

#endif
