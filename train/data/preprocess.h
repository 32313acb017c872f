/* From a text file to token files: what `holdfast preprocess` does.
 *
 * Before it: the user's JSON lines or plain text. After it: token_file. The output has the bytes
 * that Megatron's tools/preprocess_data.py writes, whatever the number of workers: documents in
 * input order, of one sequence each, or of one for each string where the JSON value is a list of
 * strings; an empty text gives no sequence, a document without a sequence gets no end token.
 * Nothing appears under the final names before all of it is durable, and no error leaves anything.
 */
#ifndef TRAIN_DATA_PREPROCESS_H
#define TRAIN_DATA_PREPROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"
#include "train/data/tokenizer.h"

#define PREPROCESS_KEYS_MAX 64
#define PREPROCESS_DOCUMENT_BYTES_MAX ((size_t)1 << 30)

enum preprocess_format {
    PREPROCESS_JSON_LINES,      /* one object a line */
    PREPROCESS_TEXT_LINES,      /* a document per line; blank lines are skipped */
    PREPROCESS_TEXT_PARAGRAPHS, /* per block of lines; blank lines part them */
    PREPROCESS_TEXT_FILE        /* the file is one document */
};

struct preprocess_config {
    struct fs *fs; /* for the output */
    const char *input;
    enum preprocess_format format;
    /* Each makes a pair; text formats have one, which only names the pair. */
    const char *const *keys;
    size_t key_count;          /* 1 .. PREPROCESS_KEYS_MAX */
    const char *output_prefix; /* the pairs are PREFIX_KEY_document.idx and .bin */
    const struct tokenizer *tokenizer;
    bool append_end_of_document; /* of a tokenizer that has an id for it */
    int workers;                 /* 1 .. THREAD_COUNT_MAX */
    /* Documents between progress lines, which come at most once a second; 0: none. */
    int64_t log_interval;
    bool (*should_stop)(void); /* asked now and then; true ends in STATUS_INTERRUPTED */
};

/* Input that is not as wanted is STATUS_BAD_DATA and names file and line: a blank or invalid JSON
 * line, no object, a key that is missing or neither string nor list of strings, a byte order mark,
 * invalid UTF-8; also an output that would have no token at all. Of several bad lines the first is
 * named. */
enum status preprocess_run(const struct preprocess_config *config) STATUS_MUST_CHECK;

#endif
