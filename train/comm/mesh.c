/* Sockets to every other rank. See mesh.h. */
#include "train/comm/mesh.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/base/mem.h"

#define EVENTS_MAX 16

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

struct mesh_packet mesh_packet_make(const struct mesh *mesh, enum mesh_kind kind)
{
    struct mesh_packet packet = {
        .magic = MESH_MAGIC,
        .kind = kind,
        .generation = mesh->generation,
        .rank = mesh->rank,
        .size = mesh->size,
        .culprit = -1,
    };

    return packet;
}

enum status mesh_init(struct mesh *mesh, int rank, int size, uint64_t generation)
{
    enum status st = STATUS_OK;

    memset(mesh, 0, sizeof(*mesh));
    mesh->rank = rank;
    mesh->size = size;
    mesh->generation = generation;
    mesh->watch = -1;
    TRY(st, mem_alloc(&mesh->sockets, (size_t)size, sizeof(int)), done);
    TRY(st, mem_alloc(&mesh->pidfds, (size_t)size, sizeof(int)), done);
    for (int i = 0; i < size; i++) {
        mesh->sockets[i] = -1;
        mesh->pidfds[i] = -1;
    }
done:
    if (st != STATUS_OK) {
        mem_free(&mesh->sockets);
    }
    return st;
}

static enum status watch_peer(struct mesh *mesh, int rank)
{
    struct epoll_event on_socket = {.events = EPOLLRDHUP, .data.u32 = (uint32_t)rank};
    struct epoll_event on_end = {.events = EPOLLIN, .data.u32 = (uint32_t)rank};
    struct ucred peer = {0};
    socklen_t length = sizeof(peer);

    if (epoll_ctl(mesh->watch, EPOLL_CTL_ADD, mesh->sockets[rank], &on_socket) != 0) {
        return FAIL_ERRNO("cannot watch the socket of rank %d", rank);
    }
    if (getsockopt(mesh->sockets[rank], SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
        return FAIL_ERRNO("cannot tell the process of rank %d", rank);
    }
    /* 0: it lives in a namespace that is not seen from here; its socket must do. One that ended
     * already has hung up its socket. */
    if (peer.pid > 0) {
        mesh->pidfds[rank] = (int)syscall(SYS_pidfd_open, peer.pid, 0);
        if (mesh->pidfds[rank] < 0 && errno != ESRCH && errno != EINVAL) {
            return FAIL_ERRNO("cannot watch the process of rank %d", rank);
        }
    }
    if (mesh->pidfds[rank] >= 0 &&
        epoll_ctl(mesh->watch, EPOLL_CTL_ADD, mesh->pidfds[rank], &on_end) != 0) {
        return FAIL_ERRNO("cannot watch the process of rank %d", rank);
    }
    return STATUS_OK;
}

enum status mesh_watch(struct mesh *mesh)
{
    enum status st = STATUS_OK;

    mesh->watch = epoll_create1(EPOLL_CLOEXEC);
    if (mesh->watch < 0) {
        return FAIL_ERRNO("cannot watch the other ranks");
    }
    for (int i = 0; i < mesh->size; i++) {
        if (i != mesh->rank) {
            TRY(st, watch_peer(mesh, i), done);
        }
    }
done:
    return st;
}

void mesh_deinit(struct mesh *mesh)
{
    for (int i = 0; mesh->sockets != NULL && i < mesh->size; i++) {
        close_fd(&mesh->sockets[i]);
        close_fd(&mesh->pidfds[i]);
    }
    if (mesh->sockets != NULL) {
        close_fd(&mesh->watch);
    }
    mem_free(&mesh->sockets);
    mem_free(&mesh->pidfds);
}

static void unwatch_peer(struct mesh *mesh, int rank)
{
    /* Another thread may have done so already: ENOENT is fine. */
    epoll_ctl(mesh->watch, EPOLL_CTL_DEL, mesh->sockets[rank], NULL);
    if (mesh->pidfds[rank] >= 0) {
        epoll_ctl(mesh->watch, EPOLL_CTL_DEL, mesh->pidfds[rank], NULL);
    }
}

int mesh_find_dead(struct mesh *mesh, const struct fault *fault)
{
    struct epoll_event events[EVENTS_MAX];
    int count = mesh->watch >= 0 ? epoll_wait(mesh->watch, events, EVENTS_MAX, 0) : 0;

    for (int i = 0; i < count; i++) {
        int rank = (int)events[i].data.u32;

        if (atomic_load(&fault->page->members[rank].left) == 0) {
            return rank;
        }
        unwatch_peer(mesh, rank);
    }
    return -1;
}

/* Whether it is a whole goodbye; ends its text. */
static bool is_bye(const struct mesh *mesh, struct mesh_packet *packet, ssize_t got)
{
    if (got != sizeof(*packet) || packet->kind != MESH_BYE || packet->code <= STATUS_OK ||
        packet->code >= STATUS_COUNT || packet->culprit < -1 || packet->culprit >= mesh->size) {
        return false;
    }
    packet->text[MESH_TEXT_MAX - 1] = '\0';
    return true;
}

bool mesh_read_bye(struct mesh *mesh, int rank, struct mesh_packet *out_bye)
{
    for (;;) {
        ssize_t got = recv(mesh->sockets[rank], out_bye, sizeof(*out_bye), MSG_DONTWAIT);

        /* A peer that left something unread resets the socket, and the kernel tells that first,
         * once; what the peer had sent is behind it. */
        if (got < 0 && errno == ECONNRESET) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        if (is_bye(mesh, out_bye, got)) {
            return true;
        }
    }
}

void mesh_say_bye(struct mesh *mesh, enum status code, int culprit, const char *text)
{
    struct mesh_packet packet = mesh_packet_make(mesh, MESH_BYE);

    packet.code = (int32_t)code;
    packet.culprit = culprit;
    snprintf(packet.text, sizeof(packet.text), "%s", text);
    for (int i = 0; i < mesh->size; i++) {
        if (mesh->sockets[i] >= 0) {
            /* Best effort: a peer that cannot take it sees the socket hang up. */
            ssize_t sent =
                send(mesh->sockets[i], &packet, sizeof(packet), MSG_NOSIGNAL | MSG_DONTWAIT);

            (void)sent;
        }
    }
}

union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

enum status mesh_send_file(struct mesh *mesh, int rank, uint64_t tag, int fd)
{
    struct mesh_packet packet = mesh_packet_make(mesh, MESH_SEGMENT);
    struct iovec part = {.iov_base = &packet, .iov_len = sizeof(packet)};
    union control control = {0};
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);

    packet.tag = tag;
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof(fd));
    if (sendmsg(mesh->sockets[rank], &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EPIPE &&
        errno != ECONNRESET) { /* these two: the watch tells it */
        return FAIL_ERRNO("cannot hand shared memory to rank %d", rank);
    }
    return STATUS_OK;
}

enum status mesh_take_file(struct mesh *mesh, int rank, uint64_t tag, int *out_fd)
{
    struct mesh_packet packet;
    struct iovec part = {.iov_base = &packet, .iov_len = sizeof(packet)};
    union control control;
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    struct cmsghdr *head = NULL;
    ssize_t got = recvmsg(mesh->sockets[rank], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    *out_fd = -1;
    if (got <= 0) {
        return STATUS_OK;
    }
    if (is_bye(mesh, &packet, got)) {
        return FAIL((enum status)packet.code, "%s", packet.text);
    }
    head = CMSG_FIRSTHDR(&message);
    if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
        memcpy(out_fd, CMSG_DATA(head), sizeof(*out_fd));
    }
    if (got != sizeof(packet) || packet.kind != MESH_SEGMENT || packet.tag != tag || *out_fd < 0) {
        close_fd(out_fd);
        return FAIL(STATUS_CORRUPT,
                    "rank %d makes another group than this rank %d now; all "
                    "members must split in the same order",
                    rank, mesh->rank);
    }
    return STATUS_OK;
}
