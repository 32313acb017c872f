/* Open uploads on disk; see s3_journal.h. */
#include "backup/s3_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "ckpt/meta/nonce.h"

#define ENTRY_BYTES_MAX ((size_t)16 << 10)

struct s3_journal_entry {
    int fd;
    char path[FS_PATH_MAX];
};

static enum status find_folder(char out_path[FS_PATH_MAX])
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");

    if (state != NULL && state[0] == '/') {
        return fs_join(out_path, state, "holdfast/uploads");
    }
    if (home != NULL && home[0] == '/') {
        return fs_join(out_path, home, ".local/state/holdfast/uploads");
    }
    return FAIL(STATUS_NOT_FOUND, "neither HOME nor XDG_STATE_HOME is set");
}

static enum status write_line(struct s3_journal_entry *entry, const char *text)
{
    enum status st = STATUS_OK;
    char *line = NULL;

    TRY(st, mem_format(&line, "%s\n", text), done);
    size_t length = strlen(line);
    if (write(entry->fd, line, length) != (ssize_t)length || fsync(entry->fd) != 0) {
        st = FAIL_ERRNO("cannot write '%s'", entry->path);
    }
done:
    mem_free(&line);
    return st;
}

/* Makes and locks a file; a visitor that locks it first removes it, and another one is made. */
static enum status create_locked(struct s3_journal_entry *entry)
{
    enum status st = STATUS_OK;
    char folder[FS_PATH_MAX], nonce[NONCE_TEXT_MAX];
    struct stat info;

    TRY(st, find_folder(folder), done);
    TRY(st, fs_make_dirs(fs_posix(), folder), done);
    do {
        if (entry->fd >= 0) {
            (void)close(entry->fd);
        }
        TRY(st, nonce_make(nonce), done);
        TRY(st, fs_join(entry->path, folder, nonce), done);
        entry->fd = open(entry->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (entry->fd < 0) {
            return FAIL_ERRNO("cannot create '%s'", entry->path);
        }
        if (flock(entry->fd, LOCK_EX) != 0 || fstat(entry->fd, &info) != 0) {
            return FAIL_ERRNO("cannot lock '%s'", entry->path);
        }
    } while (info.st_nlink == 0);
done:
    return st;
}

enum status s3_journal_begin(const char *place, const char *key,
                             struct s3_journal_entry **out_entry)
{
    enum status st = STATUS_OK;
    struct s3_journal_entry *entry = NULL;

    *out_entry = NULL;
    TRY(st, mem_alloc(&entry, 1, sizeof *entry), done);
    entry->fd = -1;
    TRY(st, create_locked(entry), done);
    TRY(st, write_line(entry, place), done);
    TRY(st, write_line(entry, key), done);
done:
    if (st == STATUS_OK) {
        *out_entry = entry;
        return STATUS_OK;
    }
    if (entry != NULL) {
        s3_journal_end(&entry, true);
    }
    if (st != STATUS_NO_MEMORY) {
        log_warn("no journal of uploads, killed ones are found by the server's list only: %s",
                 status_last()->message);
        st = STATUS_OK;
    }
    return st;
}

enum status s3_journal_note(struct s3_journal_entry *entry, const char *upload_id)
{
    return entry != NULL ? write_line(entry, upload_id) : STATUS_OK;
}

void s3_journal_end(struct s3_journal_entry **entry, bool done)
{
    if (*entry != NULL) {
        if ((*entry)->fd >= 0) {
            if (done) {
                (void)unlink((*entry)->path);
            }
            (void)close((*entry)->fd);
        }
        mem_free(entry);
    }
}

/* Cuts the next line off; NULL: there is no whole one. */
static char *next_line(char **text)
{
    char *line = *text, *end = strchr(line, '\n');

    if (end == NULL) {
        return NULL;
    }
    *end = '\0';
    *text = end + 1;
    return line;
}

static enum status visit_file(const char *path, const char *place, s3_journal_fn visit,
                              void *context)
{
    enum status st = STATUS_OK;
    char *text = NULL, *at;
    size_t bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0) {
        goto done; /* it has just ended, or still runs */
    }
    TRY(st, fs_read_file(fs_posix(), path, ENTRY_BYTES_MAX, &text, &bytes), done);
    at = text;
    const char *of_place = next_line(&at), *key = next_line(&at), *upload_id = next_line(&at);
    if (of_place != NULL && strcmp(of_place, place) != 0) {
        goto done;
    }
    if (key != NULL) { /* else it died before its upload began */
        TRY(st, visit(context, key, upload_id != NULL ? upload_id : ""), done);
    }
    (void)unlink(path);
done:
    if (fd >= 0) {
        (void)close(fd);
    }
    mem_free(&text);
    return st;
}

enum status s3_journal_visit(const char *place, s3_journal_fn visit, void *context)
{
    enum status st = STATUS_OK;
    struct fs_names names = {NULL, 0};
    char folder[FS_PATH_MAX], path[FS_PATH_MAX];

    if (find_folder(folder) != STATUS_OK || !fs_exists(fs_posix(), folder)) {
        return STATUS_OK;
    }
    TRY(st, fs_list(fs_posix(), folder, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        TRY(st, fs_join(path, folder, names.names[i]), done);
        if (visit_file(path, place, visit, context) != STATUS_OK) {
            log_warn("an upload that was killed stays open for now: %s", status_last()->message);
        }
    }
done:
    fs_names_deinit(&names);
    return st;
}
