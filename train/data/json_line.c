/* Lines of JSON; see json_line.h.
 *
 * cJSON ends a decoded string at U+0000. In a line with the escape \u0000 it is parsed as U+FDD0,
 * a code point that Unicode keeps out of texts, and turned back in the decoded string; a line with
 * both is refused.
 */
#include "train/data/json_line.h"

#include <string.h>

#include "ckpt/base/mem.h"

#define NUL_ESCAPE "\\u0000"
#define STAND_IN_DIGITS "fdd0"
#define STAND_IN_UTF8 "\xef\xb7\x90"

static bool contains(const char *text, size_t bytes, const char *part)
{
    return memmem(text, bytes, part, strlen(part)) != NULL;
}

/* Overwrites the digits of each \u0000 by the stand-in's; a backslash that another one escapes
 * begins none. */
static void replace_nuls(char *line, size_t bytes)
{
    for (size_t i = 0; i + strlen(NUL_ESCAPE) <= bytes; i++) {
        if (line[i] != '\\') {
            continue;
        }
        if (memcmp(line + i, NUL_ESCAPE, strlen(NUL_ESCAPE)) == 0) {
            memcpy(line + i + 2, STAND_IN_DIGITS, strlen(STAND_IN_DIGITS));
        }
        i++;
    }
}

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) {
        at++;
    }
    return at;
}

/* NULL, or why the line is no JSON object. */
static const char *parse(const char *line, size_t bytes, cJSON **out_object)
{
    const char *end = NULL;

    if (skip_blanks(line, line + bytes) == line + bytes) {
        return "blank line";
    }
    if (memchr(line, 0, bytes) != NULL) {
        return "invalid JSON (a 0 byte)";
    }
    *out_object = cJSON_ParseWithLengthOpts(line, bytes, &end, 0);
    if (*out_object == NULL) {
        return "invalid JSON";
    }
    if (skip_blanks(end, line + bytes) < line + bytes) {
        return "invalid JSON (text behind the first value)";
    }
    return cJSON_IsObject(*out_object) ? NULL : "no JSON object";
}

enum status json_line_parse(const char *line, size_t bytes, struct json_line *out_line,
                            const char **out_fault)
{
    enum status st = STATUS_OK;
    char *copy = NULL;

    *out_line = (struct json_line){0};
    *out_fault = NULL;
    if (!contains(line, bytes, NUL_ESCAPE)) {
        *out_fault = parse(line, bytes, &out_line->object);
    } else if (contains(line, bytes, STAND_IN_UTF8) || contains(line, bytes, "\\ufdd0") ||
               contains(line, bytes, "\\uFDD0")) {
        *out_fault = "both U+0000 and U+FDD0";
    } else {
        TRY(st, mem_alloc(&copy, bytes + 1, 1), done);
        memcpy(copy, line, bytes);
        replace_nuls(copy, bytes);
        out_line->has_nul = true;
        *out_fault = parse(copy, bytes, &out_line->object);
    }
done:
    mem_free(&copy);
    return st;
}

/* Turns stand-ins back into U+0000, in place; returns the new length. */
static size_t restore_nuls(char *text)
{
    char *to = text;

    for (const char *from = text; *from != 0;) {
        if (strncmp(from, STAND_IN_UTF8, strlen(STAND_IN_UTF8)) == 0) {
            *to++ = 0;
            from += strlen(STAND_IN_UTF8);
        } else {
            *to++ = *from++;
        }
    }
    return (size_t)(to - text);
}

const char *json_line_find(const struct json_line *line, const char *key,
                           struct json_texts *out_texts)
{
    static const char wrong_type[] = "neither a string nor a list of strings under key";
    cJSON *item = NULL, *found = NULL;

    cJSON_ArrayForEach(item, line->object)
    {
        if (strcmp(item->string, key) == 0) {
            found = item;
        }
    }
    if (found == NULL) {
        return "no key";
    }
    if (!cJSON_IsString(found) && !cJSON_IsArray(found)) {
        return wrong_type;
    }
    bool in_list = cJSON_IsArray(found);
    *out_texts = (struct json_texts){in_list ? found->child : found, in_list, line->has_nul};
    for (item = in_list ? found->child : NULL; item != NULL; item = item->next) {
        if (!cJSON_IsString(item)) {
            return wrong_type;
        }
    }
    return NULL;
}

bool json_texts_next(struct json_texts *texts, const char **out_text, size_t *out_bytes)
{
    cJSON *item = texts->next;

    if (item == NULL) {
        return false;
    }
    texts->next = texts->in_list ? item->next : NULL;
    *out_text = item->valuestring;
    *out_bytes = texts->has_nul ? restore_nuls(item->valuestring) : strlen(item->valuestring);
    return true;
}

void json_line_deinit(struct json_line *line)
{
    cJSON_Delete(line->object);
    *line = (struct json_line){0};
}
