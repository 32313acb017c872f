/* One socket to every other rank of a world: how a death is noticed, and how shared memory is
 * handed over when a group is made. The bandwidth goes through that memory (window,
 * ring), not through here.
 *
 * A rank is lost when its socket hangs up or its process ends (pidfd); both are in one epoll, so
 * that a look costs one system call whatever the number of ranks. The socket speaks first; the
 * pidfd covers a child that inherited the sockets of its dead parent.
 * Packets are whole (SOCK_SEQPACKET). Threads: mesh_find_dead from any, the rest from one.
 */
#ifndef TRAIN_COMM_MESH_H
#define TRAIN_COMM_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "train/comm/fault.h"

#define MESH_MAGIC 0x31434648u /* "HFC1": the version of the packets */
#define MESH_TEXT_MAX 440

enum mesh_kind { MESH_HELLO = 1, MESH_BYE, MESH_SEGMENT };

struct mesh_packet {
    uint32_t magic;
    uint32_t kind; /* enum mesh_kind */
    uint64_t generation;
    int32_t rank, size;       /* of the sender */
    int32_t code, culprit;    /* MESH_BYE: why it leaves */
    uint64_t tag;             /* MESH_SEGMENT: which group's memory */
    char text[MESH_TEXT_MAX]; /* MESH_BYE */
};

struct mesh {
    int rank, size;
    uint64_t generation;
    int *sockets; /* -1: none (this rank itself) */
    int *pidfds;  /* -1: none */
    int watch;    /* epoll; -1 in a world of one */
};

struct mesh_packet mesh_packet_make(const struct mesh *mesh, enum mesh_kind kind);
/* No socket yet; rendezvous_join fills them. */
enum status mesh_init(struct mesh *mesh, int rank, int size, uint64_t generation) STATUS_MUST_CHECK;
/* Starts to watch the peers, once all sockets are there. */
enum status mesh_watch(struct mesh *mesh) STATUS_MUST_CHECK;
void mesh_deinit(struct mesh *mesh);

/* The world rank of a peer that died, or -1. Peers that said in `fault` that they left in good
 * order are not dead and are no longer watched. */
int mesh_find_dead(struct mesh *mesh, const struct fault *fault);
/* Whether a lost peer said goodbye and why. */
bool mesh_read_bye(struct mesh *mesh, int rank, struct mesh_packet *out_bye);
/* Tells every peer why this rank leaves, while they do not share its page of faults. */
void mesh_say_bye(struct mesh *mesh, enum status code, int culprit, const char *text);

/* Hands an open file to a peer; never waits: a peer that reads nothing is an error. */
enum status mesh_send_file(struct mesh *mesh, int rank, uint64_t tag, int fd) STATUS_MUST_CHECK;
/* Takes what mesh_send_file sent when it is there, else *out_fd is -1. Another tag is
 * STATUS_CORRUPT, a goodbye the status that it brings. A hung up socket gives -1: mesh_find_dead
 * tells of it. */
enum status mesh_take_file(struct mesh *mesh, int rank, uint64_t tag, int *out_fd)
    STATUS_MUST_CHECK;

#endif
