/* The commands of `holdfast backup`, each from open to close; backup_main.c parses and exits.
 *
 * Before it: backup_main. After it: remote_catalog, sync_plan, transfer. Results are printed to
 * stdout, as a line a checkpoint, or as JSON lines with a "type".
 */
#ifndef BACKUP_COMMANDS_H
#define BACKUP_COMMANDS_H

#include <stdbool.h>
#include <stdint.h>

#include "backup/store.h"
#include "ckpt/base/command.h"
#include "ckpt/base/options.h"
#include "ckpt/base/status.h"

#define COMMANDS_GIVEN_MAX 12

struct backup_options {
    int64_t step; /* -1: the newest */
    int64_t jobs;
    int64_t keep_last; /* push: 0 prunes nothing */
    bool all, json, quick, dry_run;
    char endpoint_url[OPTIONS_TEXT_MAX], region[OPTIONS_TEXT_MAX], profile[OPTIONS_TEXT_MAX],
        ca[OPTIONS_TEXT_MAX]; /* see struct store_options */
    bool given[COMMANDS_GIVEN_MAX];
};

/* Opens the store that the options describe. */
enum status commands_open_store(const struct backup_options *options, const char *where, int create,
                                struct store **out_store) STATUS_MUST_CHECK;

/* `values` is a struct backup_options; the arguments are named behind each command. */

/* SAVE STORE. Pushes one step, or all that are not there. STATUS_PARTIAL: some of them could not
 * be. */
enum status backup_push(const void *values, const struct command_words *words) STATUS_MUST_CHECK;
/* STORE SAVE. Restores one step into SAVE by one rename. STATUS_EXISTS: another checkpoint of that
 * step is there. */
enum status backup_pull(const void *values, const struct command_words *words) STATUS_MUST_CHECK;
/* STORE */
enum status backup_list(const void *values, const struct command_words *words) STATUS_MUST_CHECK;
/* STORE. STATUS_CORRUPT when any checked step is damaged; all are checked first. */
enum status backup_verify(const void *values, const struct command_words *words) STATUS_MUST_CHECK;
/* STORE */
enum status backup_prune(const void *values, const struct command_words *words) STATUS_MUST_CHECK;

#endif
