/* What the tests of ckpt/base share: status assertions, a temporary folder, a caught stream. */
#ifndef TESTS_UNIT_BASE_SUPPORT_H
#define TESTS_UNIT_BASE_SUPPORT_H

#include <criterion/criterion.h>
#include <stdint.h>

#include "ckpt/base/fs.h"
#include "ckpt/base/status.h"

#define assert_status(call, wanted)                                                                \
    do {                                                                                           \
        enum status got_ = (call);                                                                 \
        cr_assert(got_ == (wanted), "%s is %s (%s), wanted %s", #call, status_name(got_),          \
                  got_ == STATUS_OK ? "" : status_last()->message, #wanted);                       \
    } while (0)
#define assert_ok(call) assert_status(call, STATUS_OK)
#define assert_says(text)                                                                          \
    cr_assert(strstr(status_last()->message, (text)) != NULL, "'%s' is not in '%s'", (text),       \
              status_last()->message)

/* A new folder below $TMPDIR or /tmp; removed by support_remove_folder. */
void support_make_folder(char out_path[FS_PATH_MAX]);
void support_remove_folder(const char *path);

void support_write(const char *folder, const char *name, const void *bytes, size_t count);

/* Sends what is written to descriptor `fd` to a temporary file, until support_release, which gives
 * the text (to be freed by free). */
struct support_catch {
    int fd, saved, file;
};
void support_catch(struct support_catch *caught, int fd);
char *support_release(struct support_catch *caught);

/* HOLDFAST_TEST_SEED or a new seed, printed either way. */
uint64_t support_seed(void);
uint64_t support_random(uint64_t *state); /* 64 bits */

#endif
