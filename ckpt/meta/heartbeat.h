/* A heartbeat file: it says who holds something (host, boot, process, run), and its counter moves
 * as long as the holder lives. The lease's .owner.<E> and the pins of readers are such files.
 *
 * The text is JSON; "counter" and "state" come first, in fields of fixed width that are overwritten
 * in place without a sync, so that a reader sees valid JSON at any moment after the first write and
 * a beat costs no disk flush. A file that is empty, cut or damaged (its maker died between create
 * and write) is `readable` false: nobody can be named, and only standing still proves it dead.
 * Threads: the counter is moved by a thread inside; the functions are called by one thread.
 */
#ifndef CKPT_META_HEARTBEAT_H
#define CKPT_META_HEARTBEAT_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/status.h"

#define HEARTBEAT_BEAT_MS 1000
#define HEARTBEAT_STALE_MS 10000 /* standing still so long on the observer's clock: dead */
#define HEARTBEAT_RUN_ID_MAX 64
#define HEARTBEAT_HOST_MAX 256
#define HEARTBEAT_BOOT_ID_MAX 64
#define HEARTBEAT_TEXT_MAX 512

struct heartbeat; /* one that this process moves */

struct heartbeat_holder {
    char run_id[HEARTBEAT_RUN_ID_MAX];
    char host[HEARTBEAT_HOST_MAX];
    char boot_id[HEARTBEAT_BOOT_ID_MAX]; /* a new one at each boot of the machine */
    uint64_t pid_namespace;              /* inode of /proc/self/ns/pid; pids count inside it */
    int64_t pid;
    uint64_t start_time; /* field 22 of /proc/PID/stat: tells a reused pid */
};

struct heartbeat_record {   /* one look at a file */
    struct hash128 content; /* two looks that differ here: somebody moved it */
    bool readable;
    bool released;
    struct heartbeat_holder holder; /* only when readable */
};

enum heartbeat_life {
    HEARTBEAT_GONE,   /* proved: same boot and namespace, no such process */
    HEARTBEAT_ALIVE,  /* same boot and namespace, the process is there */
    HEARTBEAT_UNKNOWN /* elsewhere: only the counter can tell */
};

/* Makes `path` (STATUS_EXISTS when it is there), writes and syncs it and starts the counter. The
 * caller syncs the directory when the name must last. After a failure no file is left. */
enum status heartbeat_create(struct fs *fs, const char *path, const char *run_id,
                             struct heartbeat **out_heartbeat) STATUS_MUST_CHECK;
/* Both stop the counter, free, take NULL inside, leave NULL, and do not change the thread's last
 * error. The first marks the file released and leaves it, the second removes it. */
void heartbeat_release(struct heartbeat **heartbeat);
void heartbeat_remove(struct heartbeat **heartbeat);

/* STATUS_NOT_FOUND when there is no file; damaged content is no error. */
enum status heartbeat_read(struct fs *fs, const char *path, struct heartbeat_record *out_record)
    STATUS_MUST_CHECK;
bool heartbeat_moved(const struct heartbeat_record *before, const struct heartbeat_record *now);
enum heartbeat_life heartbeat_judge(const struct heartbeat_record *record);
/* This process. */
enum status heartbeat_get_self(const char *run_id, struct heartbeat_holder *out_holder)
    STATUS_MUST_CHECK;
/* "run X (host H, pid P)" */
void heartbeat_format(const struct heartbeat_holder *holder, char out_text[HEARTBEAT_TEXT_MAX]);

#endif
