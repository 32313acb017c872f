/* JSON through cJSON: reading with errors that name the file and the key, and writing.
 *
 * 64-bit integers that do not fit a double exactly (hashes) are written as hexadecimal strings
 * "0x0123456789abcdef"; counts up to 2^53 as numbers. Numbers are printed with as many digits, at
 * most 17, as make them read back bit for bit.
 */
#ifndef CKPT_BASE_JSON_H
#define CKPT_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

#define JSON_FILE_BYTES_MAX ((size_t)256 << 20)

/* `what` names the text in errors (a path). Trailing bytes, a byte order mark and nesting deeper
 * than cJSON's limit are STATUS_CORRUPT with line number. Freed by cJSON_Delete. */
enum status json_parse(const char *text, size_t bytes, const char *what, cJSON **out_value)
    STATUS_MUST_CHECK;
enum status json_read_file(struct fs *fs, const char *path, cJSON **out_value) STATUS_MUST_CHECK;
/* Indented text ending in a newline, freed by mem_free. */
enum status json_print(const cJSON *value, char **out_text) STATUS_MUST_CHECK;
/* One line without newline, freed by mem_free. */
enum status json_print_line(const cJSON *value, char **out_text) STATUS_MUST_CHECK;
/* json_print + fs_replace_file: durable, whole or not at all. */
enum status json_write_file(struct fs *fs, const char *path, const cJSON *value) STATUS_MUST_CHECK;

/* Members of an object. A missing key or another type is STATUS_CORRUPT and says
 * "WHAT: no number 'key'" (for example), `what` being the file's name. Strings belong to the
 * object. */
enum status json_get_string(const cJSON *object, const char *what, const char *key,
                            const char **out_text) STATUS_MUST_CHECK;
enum status json_get_u64(const cJSON *object, const char *what, const char *key,
                         uint64_t *out_value) STATUS_MUST_CHECK; /* 0 .. 2^53 */
enum status json_get_i64(const cJSON *object, const char *what, const char *key, int64_t *out_value)
    STATUS_MUST_CHECK;
enum status json_get_hex64(const cJSON *object, const char *what, const char *key,
                           uint64_t *out_value) STATUS_MUST_CHECK;
enum status json_get_double(const cJSON *object, const char *what, const char *key,
                            double *out_value) STATUS_MUST_CHECK;
enum status json_get_bool(const cJSON *object, const char *what, const char *key, bool *out_value)
    STATUS_MUST_CHECK;
enum status json_get_object(const cJSON *object, const char *what, const char *key,
                            cJSON **out_value) STATUS_MUST_CHECK;
enum status json_get_array(const cJSON *object, const char *what, const char *key,
                           cJSON **out_value) STATUS_MUST_CHECK;

/* Adding members; a failed allocation is STATUS_NO_MEMORY. json_add_item takes `item` over, also
 * when it fails. */
enum status json_new_object(cJSON **out_value) STATUS_MUST_CHECK;
enum status json_new_array(cJSON **out_value) STATUS_MUST_CHECK;
enum status json_add_string(cJSON *object, const char *key, const char *text) STATUS_MUST_CHECK;
enum status json_add_u64(cJSON *object, const char *key, uint64_t value) STATUS_MUST_CHECK;
enum status json_add_i64(cJSON *object, const char *key, int64_t value) STATUS_MUST_CHECK;
enum status json_add_hex64(cJSON *object, const char *key, uint64_t value) STATUS_MUST_CHECK;
enum status json_add_double(cJSON *object, const char *key, double value) STATUS_MUST_CHECK;
enum status json_add_bool(cJSON *object, const char *key, bool value) STATUS_MUST_CHECK;
enum status json_add_item(cJSON *object, const char *key, cJSON *item) STATUS_MUST_CHECK;
enum status json_append(cJSON *array, cJSON *item) STATUS_MUST_CHECK; /* takes item over */

#endif
