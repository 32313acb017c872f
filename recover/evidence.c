/* /proc/PID read into one line; see evidence.h. These are no files of a checkpoint and may vanish
 * at any time, so they are read plainly and not through fs.h. */
#include "recover/evidence.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_FRAMES_MAX 6

/* A whole small file of /proc/PID; "" when it cannot be read. */
static void read_proc(pid_t pid, const char *name, char *out_text, size_t bytes)
{
    char path[64];
    ssize_t got = -1;

    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        got = read(fd, out_text, bytes - 1);
        (void)close(fd);
    }
    out_text[got > 0 ? got : 0] = '\0';
}

static void append(char *text, size_t bytes, const char *label, const char *value)
{
    size_t used = strlen(text);

    if (value[0] != '\0' && used < bytes) {
        (void)snprintf(text + used, bytes - used, "%s%s %s", used > 0 ? ", " : "", label, value);
    }
}

/* The value of a line "KEY:\tvalue" of a status file, cut at its end; "" when there is none. */
static void find_line(const char *text, const char *key, char *out_value, size_t bytes)
{
    const char *at = strstr(text, key);

    out_value[0] = '\0';
    if (at != NULL) {
        at += strlen(key);
        at += strspn(at, ": \t");
        (void)snprintf(out_value, bytes, "%.*s", (int)strcspn(at, "\n"), at);
    }
}

/* "[<0>] futex_wait+0x12/0x34\n..." becomes "futex_wait < ...". */
static void shorten_stack(const char *stack, char *out_text, size_t bytes)
{
    int frames = 0;

    out_text[0] = '\0';
    while (*stack != '\0' && frames < STACK_FRAMES_MAX) {
        size_t length = strcspn(stack, "\n");
        const char *name = memchr(stack, ']', length);
        size_t used = strlen(out_text);

        if (name != NULL) {
            name += 1 + strspn(name + 1, " ");
            (void)snprintf(out_text + used, bytes - used, "%s%.*s", frames > 0 ? " < " : "",
                           (int)strcspn(name, "+\n"), name);
            frames++;
        }
        stack += length + (stack[length] == '\n');
    }
}

void evidence_collect(pid_t pid, char *out_text, size_t bytes)
{
    char text[4096], value[512];

    out_text[0] = '\0';
    read_proc(pid, "status", text, sizeof text);
    find_line(text, "State", value, sizeof value);
    append(out_text, bytes, "state", value);
    read_proc(pid, "wchan", text, sizeof text);
    append(out_text, bytes, "wchan", strcmp(text, "0") == 0 ? "" : text);
    read_proc(pid, "syscall", text, sizeof text);
    text[strcspn(text, " \n")] = '\0';
    append(out_text, bytes, "syscall", text);
    read_proc(pid, "stack", text, sizeof text);
    shorten_stack(text, value, sizeof value);
    append(out_text, bytes, "kernel stack", value);
}

bool evidence_is_traced(pid_t pid)
{
    char text[4096], value[32];

    read_proc(pid, "status", text, sizeof text);
    find_line(text, "TracerPid", value, sizeof value);
    return strtol(value, NULL, 10) > 0;
}
