/* What the tests of train/data share: folders, files, and the reference documents. */
#ifndef TESTS_UNIT_DATA_DATA_SUPPORT_H
#define TESTS_UNIT_DATA_DATA_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "train/data/token_file.h"

#define SUPPORT_PATH_MAX 1024

/* A new folder under $TMPDIR or /tmp, and the end of it. */
void support_make_folder(char out_path[SUPPORT_PATH_MAX]);
void support_remove_folder(const char *path);
size_t support_count_files(const char *folder);

/* printf into a path of static storage; the last 64 stay valid. */
const char *support_path(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A path under tests/refs. */
const char *support_ref(const char *name);
/* A path as one word of a blend: its blanks have a backslash before them. */
const char *support_word(const char *path);

void support_write(const char *path, const void *bytes, size_t count);
void support_write_text(const char *path, const char *text);
/* The bytes of a file, with a 0 behind them; freed by free. */
char *support_read(const char *path, size_t *out_count);
/* Fails the test with the first offset that differs. */
void support_check_same(const char *path, const char *wanted_path);
/* Writes SOURCE.idx and .bin, maybe cut at the end, as TARGET. */
void support_copy_pair(const char *source, const char *target, size_t index_cut, size_t tokens_cut);
/* Overwrites bytes of a file. */
void support_patch(const char *path, size_t offset, const void *bytes, size_t count);

/* The last error's message holds `part`. */
bool support_message_has(const char *part);

/* Writes the documents of a reference JSON ({"dtype", "documents": [[[id ...] ...] ...]}). */
void support_write_documents(const char *json_path, const char *prefix);

#endif
