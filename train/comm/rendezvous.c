/* How the ranks of one generation find each other. See rendezvous.h.
 *
 *   lower rank:  ABSENT --connect, hello--> GREETED --its hello is right--> JOINED
 *   higher rank: ABSENT --it connects (a caller), its hello is right, answer--> JOINED
 * A JOINED peer that says bye or hangs up ends the meeting: it knows why, and all need all.
 * Everything is non-blocking in one loop, so that a silent stranger holds up nobody.
 */
#include "train/comm/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"

#define CALLERS_MAX 64 /* accepted, but not yet known */
#define TURN_MS 2      /* between two tries to connect */
#define BEAT_NS ((int64_t)100 * 1000 * 1000)

enum peer_state { PEER_ABSENT, PEER_GREETED, PEER_JOINED, PEER_BUSY };
/* PEER_BUSY: joined, and has sent what is not for the rendezvous: its packets stay unread. */

struct meeting {
    const struct comm_config *config;
    struct mesh *mesh;
    struct deadline deadline;
    int directory; /* sockets are named through /proc/self/fd: a path has no
                                     * more than 107 bytes in sockaddr_un */
    int listener;
    bool is_named; /* our socket's name is in the folder */
    int callers[CALLERS_MAX];
    int caller_count;
    enum peer_state *states;
    struct pollfd *polls; /* [0] listener, callers, then one per rank */
    int64_t next_beat_ns;
    int old_rank; /* an older generation still holds this rank's place; -1 */
    uint64_t old_generation;
};

void rendezvous_format_ranks(char *out_text, size_t bytes, const int *ranks, int count)
{
    size_t used = (size_t)snprintf(out_text, bytes, "rank%s", count == 1 ? "" : "s");

    for (int i = 0; i < count; i++) {
        if (used + 32 > bytes) {
            snprintf(out_text + used, bytes - used, " and %d more", count - i);
            return;
        }
        used +=
            (size_t)snprintf(out_text + used, bytes - used, "%s %d", i == 0 ? "" : ",", ranks[i]);
    }
}

static struct sockaddr_un name_of_rank(const struct meeting *meeting, int rank)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};

    snprintf(name.sun_path, sizeof(name.sun_path), "/proc/self/fd/%d/rank-%d", meeting->directory,
             rank);
    return name;
}

static enum status open_socket(int *out_fd)
{
    *out_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *out_fd < 0 ? FAIL_ERRNO("cannot make a socket") : STATUS_OK;
}

/* Whether the name in the folder is a dead process's: nobody listens behind it. */
static enum status is_name_stale(const struct meeting *meeting, bool *out_stale)
{
    struct sockaddr_un name = name_of_rank(meeting, meeting->config->rank);
    enum status st = STATUS_OK;
    int probe = -1;

    TRY(st, open_socket(&probe), done);
    *out_stale =
        connect(probe, (struct sockaddr *)&name, sizeof(name)) != 0 && errno == ECONNREFUSED;
    close(probe);
done:
    return st;
}

static enum status take_name(struct meeting *meeting)
{
    const struct comm_config *config = meeting->config;
    struct sockaddr_un name = name_of_rank(meeting, config->rank);
    enum status st = STATUS_OK;

    TRY(st, open_socket(&meeting->listener), done);
    while (bind(meeting->listener, (struct sockaddr *)&name, sizeof(name)) != 0) {
        bool is_stale = false;

        if (errno != EADDRINUSE) {
            return FAIL_ERRNO("cannot listen in the rendezvous folder '%s'",
                              config->rendezvous_dir);
        }
        TRY(st, is_name_stale(meeting, &is_stale), done);
        if (is_stale) {
            unlink(name.sun_path);
        } else if (deadline_passed(meeting->deadline)) {
            return FAIL(STATUS_EXISTS,
                        "another process is rank %d in '%s'; end it, or take a "
                        "new rendezvous folder",
                        config->rank, config->rendezvous_dir);
        } else {
            clock_sleep_ms(TURN_MS);
        }
    }
    meeting->is_named = true;
    if (listen(meeting->listener, config->size) != 0) {
        return FAIL_ERRNO("cannot listen in the rendezvous folder '%s'", config->rendezvous_dir);
    }
done:
    return st;
}

/* Whether a greeting is one of this meeting; a newer or contradicting one ends it (status). */
static enum status judge_hello(struct meeting *meeting, const struct mesh_packet *hello,
                               bool *out_is_ours)
{
    const struct comm_config *config = meeting->config;

    *out_is_ours = false;
    if (hello->magic != MESH_MAGIC || hello->kind != MESH_HELLO || hello->rank < 0) {
        log_warn("turned away a stranger in the rendezvous folder '%s'", config->rendezvous_dir);
        return STATUS_OK;
    }
    if (hello->generation > config->generation) {
        return FAIL(STATUS_ABORTED,
                    "rank %d in '%s' is of the newer generation %" PRIu64
                    "; this process of generation %" PRIu64 " ends",
                    hello->rank, config->rendezvous_dir, hello->generation, config->generation);
    }
    if (hello->generation < config->generation) {
        if (meeting->old_rank != hello->rank) {
            log_warn("turned away rank %d of the older generation %" PRIu64, hello->rank,
                     hello->generation);
        }
        meeting->old_rank = hello->rank;
        meeting->old_generation = hello->generation;
        return STATUS_OK;
    }
    if (hello->size != config->size) {
        return FAIL(STATUS_USAGE,
                    "rank %d was started for %d ranks, rank %d for %d; start all "
                    "with the same number",
                    hello->rank, hello->size, config->rank, config->size);
    }
    *out_is_ours = hello->rank < config->size;
    return STATUS_OK;
}

/* Reads one greeting. *out_is_there is false when none has come; one that is no packet of ours
 * has magic 0. */
static void read_hello(int fd, struct mesh_packet *out_hello, bool *out_is_there)
{
    ssize_t got = recv(fd, out_hello, sizeof(*out_hello), MSG_DONTWAIT);

    *out_is_there = got >= 0 || (errno != EAGAIN && errno != EINTR);
    if (got != sizeof(*out_hello)) {
        out_hello->magic = 0;
    }
}

static bool send_hello(const struct meeting *meeting, int fd)
{
    struct mesh_packet hello = mesh_packet_make(meeting->mesh, MESH_HELLO);

    return send(fd, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(hello);
}

static enum status call_lower_ranks(struct meeting *meeting)
{
    enum status st = STATUS_OK;

    for (int i = 0; i < meeting->config->rank; i++) {
        struct sockaddr_un name = name_of_rank(meeting, i);
        int fd = -1;

        if (meeting->states[i] != PEER_ABSENT) {
            continue;
        }
        TRY(st, open_socket(&fd), done);
        if (connect(fd, (struct sockaddr *)&name, sizeof(name)) == 0 && send_hello(meeting, fd)) {
            meeting->mesh->sockets[i] = fd;
            meeting->states[i] = PEER_GREETED;
        } else {
            close(fd);
        }
    }
done:
    return st;
}

static bool is_same_user(int fd)
{
    struct ucred peer = {0};
    socklen_t length = sizeof(peer);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

static void accept_callers(struct meeting *meeting)
{
    for (;;) {
        int fd = accept4(meeting->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0) {
            return;
        }
        if (!is_same_user(fd)) {
            log_warn("turned away another user in the rendezvous folder '%s'",
                     meeting->config->rendezvous_dir);
            close(fd);
            continue;
        }
        if (meeting->caller_count == CALLERS_MAX) { /* the one that was silent the longest */
            close(meeting->callers[0]);
            meeting->caller_count--;
            memmove(meeting->callers, meeting->callers + 1,
                    (size_t)meeting->caller_count * sizeof(int));
        }
        meeting->callers[meeting->caller_count++] = fd;
    }
}

/* Hears the callers out; those whose greeting is there leave the list, as members or not. */
static enum status hear_callers(struct meeting *meeting)
{
    enum status st = STATUS_OK;
    int kept = 0;

    for (int i = 0; i < meeting->caller_count; i++) {
        struct mesh_packet hello;
        bool is_there = false;
        bool is_ours = false;
        int fd = meeting->callers[i];

        read_hello(fd, &hello, &is_there);
        if (!is_there || st != STATUS_OK) {
            meeting->callers[kept++] = fd;
            continue;
        }
        st = judge_hello(meeting, &hello, &is_ours);
        is_ours = is_ours && hello.rank > meeting->config->rank &&
                  meeting->states[hello.rank] == PEER_ABSENT;
        /* One that is turned away is answered too, so that it learns who sits here. */
        if (send_hello(meeting, fd) && is_ours) {
            meeting->mesh->sockets[hello.rank] = fd;
            meeting->states[hello.rank] = PEER_JOINED;
        } else {
            close(fd);
        }
    }
    meeting->caller_count = kept;
    return st;
}

static enum status hear_answer(struct meeting *meeting, int rank)
{
    struct mesh_packet hello;
    bool is_there = false;
    bool is_ours = false;
    enum status st = STATUS_OK;

    read_hello(meeting->mesh->sockets[rank], &hello, &is_there);
    if (!is_there) {
        return STATUS_OK;
    }
    if (hello.magic != 0) { /* 0: it has gone again; call it again */
        TRY(st, judge_hello(meeting, &hello, &is_ours), done);
    }
    if (is_ours && hello.rank == rank) {
        meeting->states[rank] = PEER_JOINED;
    } else {
        close(meeting->mesh->sockets[rank]);
        meeting->mesh->sockets[rank] = -1;
        meeting->states[rank] = PEER_ABSENT;
    }
done:
    return st;
}

/* A peer that had joined speaks before the meeting is over. */
static enum status hear_peer(struct meeting *meeting, int rank)
{
    struct mesh_packet packet = {0};
    ssize_t got =
        recv(meeting->mesh->sockets[rank], &packet, sizeof(packet), MSG_DONTWAIT | MSG_PEEK);

    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return STATUS_OK;
    }
    if (got == sizeof(packet) && packet.kind == MESH_SEGMENT) {
        meeting->states[rank] = PEER_BUSY;
        return STATUS_OK;
    }
    if (mesh_read_bye(meeting->mesh, rank, &packet)) {
        return FAIL((enum status)packet.code, "%s", packet.text);
    }
    return FAIL(STATUS_PEER_LOST, "rank %d died during the rendezvous; start a new generation",
                rank);
}

static enum status listen_once(struct meeting *meeting, int timeout_ms)
{
    const struct comm_config *config = meeting->config;
    struct pollfd *polls = meeting->polls;
    struct pollfd *of_ranks = polls + 1 + meeting->caller_count;
    enum status st = STATUS_OK;

    polls[0] = (struct pollfd){.fd = meeting->listener, .events = POLLIN};
    for (int i = 0; i < meeting->caller_count; i++) {
        polls[1 + i] = (struct pollfd){.fd = meeting->callers[i], .events = POLLIN};
    }
    for (int i = 0; i < config->size; i++) {
        of_ranks[i] = (struct pollfd){
            .fd = meeting->mesh->sockets[i],
            .events = meeting->states[i] == PEER_BUSY ? 0 : POLLIN,
        };
    }
    if (poll(polls, (nfds_t)(1 + meeting->caller_count + config->size), timeout_ms) < 0) {
        return errno == EINTR ? STATUS_OK : FAIL_ERRNO("cannot wait for the other ranks");
    }
    for (int i = 0; i < config->size; i++) {
        if (of_ranks[i].fd < 0 || of_ranks[i].revents == 0) {
            continue;
        }
        if (meeting->states[i] == PEER_GREETED) {
            TRY(st, hear_answer(meeting, i), done);
        } else {
            TRY(st, hear_peer(meeting, i), done);
        }
    }
    accept_callers(meeting);
    TRY(st, hear_callers(meeting), done);
done:
    return st;
}

static int list_missing(const struct meeting *meeting, int *out_ranks)
{
    int count = 0;

    for (int i = 0; i < meeting->config->size; i++) {
        if (i != meeting->config->rank && meeting->states[i] < PEER_JOINED) {
            out_ranks[count++] = i;
        }
    }
    return count;
}

static enum status fail_timeout(const struct meeting *meeting, const int *missing, int count)
{
    const struct comm_config *config = meeting->config;
    char names[160];
    char old[80] = "";

    rendezvous_format_ranks(names, sizeof(names), missing, count);
    if (meeting->old_rank >= 0) {
        snprintf(old, sizeof(old), " (rank %d of the old generation %" PRIu64 " is still there)",
                 meeting->old_rank, meeting->old_generation);
    }
    return FAIL(STATUS_TIMEOUT,
                "%s of %d did not come to '%.120s' within %" PRId64 " ms%s; look "
                "why they did not start",
                names, config->size, config->rendezvous_dir, config->init_timeout_ms, old);
}

static void beat(struct meeting *meeting)
{
    int64_t now = clock_monotonic_ns();

    if (meeting->config->on_wait != NULL && now >= meeting->next_beat_ns) {
        meeting->config->on_wait(meeting->config->on_wait_context);
        meeting->next_beat_ns = now + BEAT_NS;
    }
}

static enum status meet(struct meeting *meeting)
{
    enum status st = STATUS_OK;
    int *missing = NULL;
    int count = 0;

    TRY(st, mem_alloc(&missing, (size_t)meeting->config->size, sizeof(int)), done);
    for (;;) {
        TRY(st, call_lower_ranks(meeting), done);
        count = list_missing(meeting, missing);
        if (count == 0) {
            break;
        }
        if (deadline_passed(meeting->deadline)) {
            st = fail_timeout(meeting, missing, count);
            break;
        }
        TRY(st, listen_once(meeting, TURN_MS), done);
        beat(meeting);
    }
done:
    mem_free(&missing);
    return st;
}

static void end_meeting(struct meeting *meeting)
{
    for (int i = 0; i < meeting->caller_count; i++) {
        close(meeting->callers[i]);
    }
    if (meeting->is_named) {
        struct sockaddr_un name = name_of_rank(meeting, meeting->config->rank);

        unlink(name.sun_path);
    }
    if (meeting->listener >= 0) {
        close(meeting->listener);
    }
    if (meeting->directory >= 0) {
        close(meeting->directory);
    }
    mem_free(&meeting->states);
    mem_free(&meeting->polls);
}

enum status rendezvous_join(const struct comm_config *config, struct mesh *mesh)
{
    struct meeting meeting = {
        .config = config,
        .mesh = mesh,
        .deadline = deadline_in_ms(config->init_timeout_ms),
        .directory = -1,
        .listener = -1,
        .old_rank = -1,
        .next_beat_ns = clock_monotonic_ns() + BEAT_NS,
    };
    size_t size = (size_t)config->size;
    enum status st = STATUS_OK;

    TRY(st, mem_alloc(&meeting.states, size, sizeof(*meeting.states)), done);
    TRY(st, mem_alloc(&meeting.polls, 1 + CALLERS_MAX + size, sizeof(*meeting.polls)), done);
    meeting.directory = open(config->rendezvous_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (meeting.directory < 0) {
        st = FAIL_ERRNO("cannot open the rendezvous folder '%s'", config->rendezvous_dir);
        goto done;
    }
    TRY(st, take_name(&meeting), done);
    TRY(st, meet(&meeting), done);
done:
    end_meeting(&meeting);
    return st;
}
