/* JSON through cJSON; see json.h. */
#include "ckpt/base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/mem.h"

#define NUMBER_TEXT_MAX 32
#define EXACT_MAX ((double)(1ULL << 53)) /* integers up to here fit a double exactly */

static enum status no_memory(void)
{
    return FAIL(STATUS_NO_MEMORY, "cannot allocate a JSON value");
}

static size_t line_of(const char *text, const char *at)
{
    size_t line = 1;

    for (; text < at; text++) {
        line += *text == '\n';
    }
    return line;
}

enum status json_parse(const char *text, size_t bytes, const char *what, cJSON **out_value)
{
    const char *end = NULL;

    *out_value = NULL;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        return FAIL(STATUS_CORRUPT, "'%s' begins with a byte order mark, which is not JSON", what);
    }
    cJSON *value = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    if (value == NULL) {
        return FAIL(STATUS_CORRUPT, "'%s' is not JSON: line %zu", what,
                    line_of(text, end != NULL ? end : text));
    }
    while (end < text + bytes && strchr(" \t\r\n", *end) != NULL && *end != '\0') {
        end++;
    }
    if (end < text + bytes) {
        cJSON_Delete(value);
        return FAIL(STATUS_CORRUPT, "'%s' goes on after its JSON value: line %zu", what,
                    line_of(text, end));
    }
    *out_value = value;
    return STATUS_OK;
}

enum status json_read_file(struct fs *fs, const char *path, cJSON **out_value)
{
    enum status st = STATUS_OK;
    char *text = NULL;
    size_t bytes = 0;

    *out_value = NULL;
    TRY(st, fs_read_file(fs, path, JSON_FILE_BYTES_MAX, &text, &bytes), done);
    TRY(st, json_parse(text, bytes, path, out_value), done);
done:
    mem_free(&text);
    return st;
}

/* The fewest digits that read back as `value`. */
static void format_number(double value, char out_text[NUMBER_TEXT_MAX])
{
    int digits = 15;

    do {
        (void)snprintf(out_text, NUMBER_TEXT_MAX, "%.*g", digits, value);
    } while (strtod(out_text, NULL) != value && ++digits <= 17);
}

/* cJSON 1.7.16 and later print these by %d, which loses the sign of -0. */
static bool prints_as_int(const cJSON *number)
{
    double value = number->valuedouble;

    return value == (double)number->valueint && (value != 0 || !signbit(value));
}

/* Makes the numbers of a list of items and of all below it raw text: cJSON's own printing is
 * content with 15 digits that come within an epsilon, which are other bits. */
static enum status freeze_numbers(cJSON *item)
{
    enum status st = STATUS_OK;

    for (; item != NULL; item = item->next) {
        TRY(st, freeze_numbers(item->child), done);
        if (cJSON_IsNumber(item) && isfinite(item->valuedouble) && !prints_as_int(item)) {
            item->valuestring = cJSON_malloc(NUMBER_TEXT_MAX);
            if (item->valuestring == NULL) {
                st = no_memory();
                goto done;
            }
            format_number(item->valuedouble, item->valuestring);
            item->type = (item->type & ~cJSON_Number) | cJSON_Raw;
        }
    }
done:
    return st;
}

/* cJSON's text in our own memory, with `tail` behind it. */
static enum status print(const cJSON *value, bool indented, const char *tail, char **out_text)
{
    enum status st = STATUS_OK;
    cJSON *frozen = cJSON_Duplicate(value, true);
    char *text = NULL;

    *out_text = NULL;
    if (frozen == NULL) {
        return no_memory();
    }
    TRY(st, freeze_numbers(frozen), done);
    text = indented ? cJSON_Print(frozen) : cJSON_PrintUnformatted(frozen);
    if (text == NULL) {
        st = no_memory();
        goto done;
    }
    TRY(st, mem_format(out_text, "%s%s", text, tail), done);
done:
    cJSON_free(text);
    cJSON_Delete(frozen);
    return st;
}

enum status json_print(const cJSON *value, char **out_text)
{
    return print(value, true, "\n", out_text);
}

enum status json_print_line(const cJSON *value, char **out_text)
{
    return print(value, false, "", out_text);
}

enum status json_write_file(struct fs *fs, const char *path, const cJSON *value)
{
    enum status st = STATUS_OK;
    char *text = NULL;

    TRY(st, json_print(value, &text), done);
    TRY(st, fs_replace_file(fs, path, text, strlen(text)), done);
done:
    mem_free(&text);
    return st;
}

static enum status get(const cJSON *object, const char *what, const char *key, const char *type,
                       cJSON_bool (*is_type)(const cJSON *), cJSON **out_item)
{
    cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);

    if (item == NULL || !is_type(item)) {
        return FAIL(STATUS_CORRUPT, "'%s': no %s '%s'", what, type, key);
    }
    *out_item = item;
    return STATUS_OK;
}

enum status json_get_string(const cJSON *object, const char *what, const char *key,
                            const char **out_text)
{
    enum status st = STATUS_OK;
    cJSON *item = NULL;

    TRY(st, get(object, what, key, "string", cJSON_IsString, &item), done);
    *out_text = item->valuestring;
done:
    return st;
}

static enum status get_integer(const cJSON *object, const char *what, const char *key, double min,
                               double *out_value)
{
    enum status st = STATUS_OK;
    cJSON *item = NULL;

    TRY(st, get(object, what, key, "number", cJSON_IsNumber, &item), done);
    double value = item->valuedouble;
    if (!(value >= min && value <= EXACT_MAX) || value != floor(value)) {
        return FAIL(STATUS_CORRUPT, "'%s': '%s' is %.17g, wanted an integer from %.0f to 2^53",
                    what, key, value, min);
    }
    *out_value = value;
done:
    return st;
}

enum status json_get_u64(const cJSON *object, const char *what, const char *key,
                         uint64_t *out_value)
{
    enum status st = STATUS_OK;
    double value = 0;

    TRY(st, get_integer(object, what, key, 0, &value), done);
    *out_value = (uint64_t)value;
done:
    return st;
}

enum status json_get_i64(const cJSON *object, const char *what, const char *key, int64_t *out_value)
{
    enum status st = STATUS_OK;
    double value = 0;

    TRY(st, get_integer(object, what, key, -EXACT_MAX, &value), done);
    *out_value = (int64_t)value;
done:
    return st;
}

enum status json_get_hex64(const cJSON *object, const char *what, const char *key,
                           uint64_t *out_value)
{
    enum status st = STATUS_OK;
    const char *text = NULL;

    TRY(st, json_get_string(object, what, key, &text), done);
    if (strncmp(text, "0x", 2) != 0 || strlen(text) != 18 ||
        strspn(text + 2, "0123456789abcdef") != 16) {
        return FAIL(STATUS_CORRUPT, "'%s': '%s' is '%.40s', wanted 0x and 16 hexadecimal digits",
                    what, key, text);
    }
    *out_value = strtoull(text + 2, NULL, 16);
done:
    return st;
}

enum status json_get_double(const cJSON *object, const char *what, const char *key,
                            double *out_value)
{
    enum status st = STATUS_OK;
    cJSON *item = NULL;

    TRY(st, get(object, what, key, "number", cJSON_IsNumber, &item), done);
    *out_value = item->valuedouble;
done:
    return st;
}

enum status json_get_bool(const cJSON *object, const char *what, const char *key, bool *out_value)
{
    enum status st = STATUS_OK;
    cJSON *item = NULL;

    TRY(st, get(object, what, key, "true or false", cJSON_IsBool, &item), done);
    *out_value = cJSON_IsTrue(item);
done:
    return st;
}

enum status json_get_object(const cJSON *object, const char *what, const char *key,
                            cJSON **out_value)
{
    return get(object, what, key, "object", cJSON_IsObject, out_value);
}

enum status json_get_array(const cJSON *object, const char *what, const char *key,
                           cJSON **out_value)
{
    return get(object, what, key, "array", cJSON_IsArray, out_value);
}

enum status json_new_object(cJSON **out_value)
{
    *out_value = cJSON_CreateObject();
    return *out_value == NULL ? no_memory() : STATUS_OK;
}

enum status json_new_array(cJSON **out_value)
{
    *out_value = cJSON_CreateArray();
    return *out_value == NULL ? no_memory() : STATUS_OK;
}

enum status json_add_item(cJSON *object, const char *key, cJSON *item)
{
    if (item == NULL || !cJSON_AddItemToObject(object, key, item)) {
        cJSON_Delete(item);
        return no_memory();
    }
    return STATUS_OK;
}

enum status json_append(cJSON *array, cJSON *item)
{
    if (item == NULL || !cJSON_AddItemToArray(array, item)) {
        cJSON_Delete(item);
        return no_memory();
    }
    return STATUS_OK;
}

enum status json_add_string(cJSON *object, const char *key, const char *text)
{
    return json_add_item(object, key, cJSON_CreateString(text));
}

enum status json_add_u64(cJSON *object, const char *key, uint64_t value)
{
    CHECK((double)value <= EXACT_MAX);
    return json_add_item(object, key, cJSON_CreateNumber((double)value));
}

enum status json_add_i64(cJSON *object, const char *key, int64_t value)
{
    CHECK(fabs((double)value) <= EXACT_MAX);
    return json_add_item(object, key, cJSON_CreateNumber((double)value));
}

enum status json_add_hex64(cJSON *object, const char *key, uint64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof text, "0x%016" PRIx64, value);
    return json_add_string(object, key, text);
}

enum status json_add_double(cJSON *object, const char *key, double value)
{
    CHECK(isfinite(value));
    return json_add_item(object, key, cJSON_CreateNumber(value));
}

enum status json_add_bool(cJSON *object, const char *key, bool value)
{
    return json_add_item(object, key, cJSON_CreateBool(value));
}
