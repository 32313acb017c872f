/* The first fault of a world: one page of memory shared by all ranks.
 *
 * Whoever meets a fault first (a death, a passed deadline, an abort) writes its message into its
 * own slot and then claims the word `broken` by compare-and-swap. Everyone else reads the word on
 * every turn of every wait and reports that message, so that all survivors name the same culprit,
 * also those that would otherwise have blamed a rank which merely left because of it.
 * Threads: all functions from any thread.
 */
#ifndef TRAIN_COMM_FAULT_H
#define TRAIN_COMM_FAULT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "ckpt/base/status.h"

#define FAULT_TEXT_MAX 504

struct fault_member {
    _Atomic uint32_t waits_for; /* world rank + 1 that it waits for, 0: it does not wait */
    _Atomic uint32_t left;      /* closed its world in good order */
    char text[FAULT_TEXT_MAX];  /* written once, before `broken` is claimed */
};

struct fault_page {
    _Atomic uint64_t broken; /* 0: whole; else code, reporter and culprit (fault.c) */
    struct fault_member members[];
};

struct fault {
    struct fault_page *page;
    size_t bytes;
    int rank;
    pthread_mutex_t lock; /* of the threads here: one message a process */
    bool has_spoken;
};

size_t fault_page_bytes(int size);
/* Starts with a private page; fault_share replaces it by the one that all ranks have mapped. */
enum status fault_init(struct fault *fault, int rank, int size) STATUS_MUST_CHECK;
void fault_share(struct fault *fault, void *page);
void fault_deinit(struct fault *fault);

/* OK while the world is whole, else its first fault as this thread's error. */
enum status fault_check(const struct fault *fault) STATUS_MUST_CHECK;
/* Breaks the world unless it is broken already; returns the first fault. `culprit` is a world rank
 * or -1. */
enum status fault_break(struct fault *fault, enum status code, int culprit, const char *text)
    STATUS_MUST_CHECK;
int fault_culprit(const struct fault *fault); /* -1: none, or not known */

#endif
