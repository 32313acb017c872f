/* A file of settings: YAML, of which JSON is a part.
 *
 * Before it: the command line, which goes before it. After it: train_settings. The file is a
 * mapping of flags, without "--" and with '-' or '_' between words, to one value or, where a flag
 * takes several words, to a list:
 *
 *     num-layers: 12
 *     data_path: [0.7, books, 0.3, web]
 *     checkpoint:              # a section: its name says nothing, it groups flags
 *       save: runs/one
 *       save-interval: 500
 *
 * true and false (and Python's, and YAML's yes, no, on and off) are for flags that take no value;
 * null, or nothing, is the default.
 */
#ifndef TRAIN_CONFIG_FILE_H
#define TRAIN_CONFIG_FILE_H

#include "ckpt/base/options.h"
#include "ckpt/base/status.h"

#define CONFIG_FILE_BYTES_MAX ((size_t)1 << 20)
#define CONFIG_FILE_WORDS_MAX 512   /* of one list */
#define CONFIG_FILE_OPTIONS_MAX 512 /* of the table */

/* Sets what is not given yet. STATUS_USAGE names the file, the line, and for an unknown flag the
 * nearest one; a flag that stands there twice, in whatever spelling or section, is refused. */
enum status config_file_read(const char *path, const struct option_table *table, void *values)
    STATUS_MUST_CHECK;

#endif
