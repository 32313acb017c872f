/* One line of a JSON-lines file: an object, and its strings with their lengths.
 *
 * cJSON parses; this adds what a text needs and cJSON lacks: strings that hold "\u0000", the last
 * of several equal keys (as Python's json takes it), and faults as text for the caller's message.
 * After it: preprocess.
 */
#ifndef TRAIN_DATA_JSON_LINE_H
#define TRAIN_DATA_JSON_LINE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/status.h"

struct json_line {
    cJSON *object;
    bool has_nul; /* some string holds U+0000, parsed as a stand-in */
};

/* The line (valid UTF-8, without its newline) that is no JSON object sets *out_fault, a text as
 * "invalid JSON"; else that is NULL. Freed by json_line_deinit. */
enum status json_line_parse(const char *line, size_t bytes, struct json_line *out_line,
                            const char **out_fault) STATUS_MUST_CHECK;

/* The strings under one key: a string is one, a list of strings (Megatron's sentences) several. */
struct json_texts {
    cJSON *next; /* NULL: none left */
    bool in_list;
    bool has_nul;
};

/* Finds them; returns NULL, or the fault: "no key", "neither a string nor a list of strings
 * under key". */
const char *json_line_find(const struct json_line *line, const char *key,
                           struct json_texts *out_texts);
/* The next one, in order; false at the end. The text belongs to the line; take each once. */
bool json_texts_next(struct json_texts *texts, const char **out_text, size_t *out_bytes);

/* Takes a zeroed line. */
void json_line_deinit(struct json_line *line);

#endif
