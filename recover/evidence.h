/* Evidence: what the kernel says a process is doing, read just before a hung rank is killed.
 *
 * Before it: agent.c in its state SUSPECT; after it: the incident (report.h). What the kernel does
 * not show to this user is left out. Threads: any.
 */
#ifndef RECOVER_EVIDENCE_H
#define RECOVER_EVIDENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* "state S (sleeping), wchan futex_do_wait, syscall 202, kernel stack futex_do_wait < ..." */
void evidence_collect(pid_t pid, char *out_text, size_t bytes);
/* Whether a debugger holds it (TracerPid). */
bool evidence_is_traced(pid_t pid);

#endif
