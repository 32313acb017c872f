/* From observations to verdicts; see detector.h. */
#include "recover/detector.h"

#include <string.h>

#include "ckpt/base/mem.h"

#define NS_PER_MS 1000000

/* How strongly an exit points at its rank as the first cause; the smallest wins. */
enum suspicion {
    SUSPICION_FAULT,    /* died, or left with an error of its own */
    SUSPICION_INDIRECT, /* timed out, or left early though well */
    SUSPICION_CASCADE,  /* reports a lost peer */
    SUSPICION_TEARDOWN
};

enum status detector_init(struct detector *detector, int rank_count,
                          const struct detector_limits *limits, int64_t base_step, int64_t now_ns)
{
    enum status st = STATUS_OK;

    CHECK(rank_count > 0);
    *detector = (struct detector){
        .limits = *limits, .rank_count = rank_count, .base_step = base_step, .observed_ns = now_ns};
    TRY(st, mem_alloc(&detector->ranks, (size_t)rank_count, sizeof *detector->ranks), done);
    for (int i = 0; i < rank_count; i++) {
        detector->ranks[i].beat_ns = now_ns;
        detector->ranks[i].advance_ns = now_ns;
    }
done:
    return st;
}

void detector_deinit(struct detector *detector)
{
    mem_free(&detector->ranks);
    detector->rank_count = 0;
}

static struct detector_rank *rank_at(struct detector *detector, int rank)
{
    CHECK(rank >= 0 && rank < detector->rank_count);
    return &detector->ranks[rank];
}

void detector_tick(struct detector *detector, int64_t now_ns)
{
    int64_t blind_ns = now_ns - detector->observed_ns;

    detector->observed_ns = now_ns;
    if (blind_ns < (int64_t)DETECTOR_BLIND_MS * NS_PER_MS) {
        return;
    }
    for (int i = 0; i < detector->rank_count; i++) {
        struct detector_rank *rank = &detector->ranks[i];

        rank->beat_ns += blind_ns;
        rank->advance_ns += blind_ns;
        rank->step_ns = 0; /* a step with a hole in it teaches nothing */
        rank->stopped_ns += rank->stopped_ns != 0 ? blind_ns : 0;
    }
}

/* Times whole steps, so that the silence allowed in one follows what this run needs. */
static void learn_step(struct detector *detector, struct detector_rank *rank,
                       const struct detector_sample *sample, int64_t now_ns)
{
    if (sample->phase != PROGRESS_STEP) {
        rank->step_ns = 0;
        return;
    }
    if (!rank->seen || rank->sample.phase != PROGRESS_STEP || rank->step_ns == 0) {
        rank->step_ns = now_ns;
        return;
    }
    if (sample->step > rank->sample.step) {
        uint64_t steps = sample->step - rank->sample.step;
        int64_t step_ns = (now_ns - rank->step_ns) / (int64_t)steps;

        if (step_ns > detector->slowest_step_ns) {
            detector->slowest_step_ns = step_ns;
        }
        detector->steps_timed += steps;
        rank->step_ns = now_ns;
    }
}

/* Whether anybody got beyond the step at which this generation began. */
static void learn_progress(struct detector *detector, const struct detector_sample *sample)
{
    bool stepping = sample->phase != PROGRESS_NONE && sample->phase != PROGRESS_START &&
                    sample->phase != PROGRESS_LOAD;

    if (detector->base_step < 0 && stepping) {
        detector->base_step = (int64_t)sample->step;
    }
    detector->any_step = detector->any_step ||
                         (detector->base_step >= 0 && (int64_t)sample->step > detector->base_step);
}

void detector_observe(struct detector *detector, int rank_index,
                      const struct detector_sample *sample, int64_t now_ns)
{
    struct detector_rank *rank = rank_at(detector, rank_index);
    const struct detector_sample *old = &rank->sample;

    learn_step(detector, rank, sample, now_ns);
    learn_progress(detector, sample);
    if (!rank->seen || sample->beat != old->beat) {
        rank->beat_ns = now_ns;
    }
    if (!rank->seen || sample->phase != old->phase || sample->step != old->step ||
        sample->micro_batch != old->micro_batch || sample->collective != old->collective) {
        rank->advance_ns = now_ns;
    }
    rank->sample = *sample;
    rank->seen = true;
}

void detector_note_stopped(struct detector *detector, int rank, int64_t now_ns)
{
    rank_at(detector, rank)->stopped_ns = now_ns;
}

void detector_note_continued(struct detector *detector, int rank, int64_t now_ns)
{
    rank_at(detector, rank)->stopped_ns = 0;
    rank_at(detector, rank)->beat_ns = now_ns;
}

void detector_note_exit(struct detector *detector, int rank_index, const struct detector_exit *exit)
{
    struct detector_rank *rank = rank_at(detector, rank_index);

    CHECK(!rank->exited);
    rank->exited = true;
    rank->exit_order = detector->exit_count++;
    rank->exit = *exit;
}

void detector_note_order(struct detector *detector, int64_t now_ns)
{
    for (int i = 0; i < detector->rank_count; i++) {
        struct detector_rank *rank = &detector->ranks[i];

        if (!rank->exited) {
            rank->silent_at_order_ms = (now_ns - rank->beat_ns) / NS_PER_MS;
            rank->stopped_at_order = rank->stopped_ns != 0;
        }
    }
}

bool detector_exit_is_clean(const struct detector_exit *exit)
{
    return exit->signal == 0 && (exit->code == 0 || exit->code == status_exit_code(STATUS_STOPPED));
}

int64_t detector_silence_limit_ms(const struct detector *detector, int rank_index)
{
    CHECK(rank_index >= 0 && rank_index < detector->rank_count);
    enum progress_phase phase = detector->ranks[rank_index].sample.phase;
    int64_t limit_ms = detector->limits.silent_ms[phase];

    if (phase != PROGRESS_STEP || limit_ms == 0 || detector->steps_timed < DETECTOR_STEPS_LEARNED) {
        return limit_ms;
    }
    int64_t learned_ms = detector->slowest_step_ns / NS_PER_MS * DETECTOR_STEP_FACTOR;

    if (learned_ms < DETECTOR_STEP_FLOOR_MS) {
        learned_ms = DETECTOR_STEP_FLOOR_MS;
    }
    return learned_ms < limit_ms ? learned_ms : limit_ms;
}

static struct verdict blame_hang(const struct detector *detector, enum verdict_kind kind, int rank,
                                 int64_t since_ns, int64_t now_ns)
{
    return (struct verdict){.kind = kind,
                            .rank = rank,
                            .status = STATUS_TIMEOUT,
                            .phase = detector->ranks[rank].sample.phase,
                            .step = detector->ranks[rank].sample.step,
                            .any_step = detector->any_step,
                            .silent_ms = (now_ns - since_ns) / NS_PER_MS};
}

/* Whether `a` is the likelier cause of a hang than `b`: outside of collectives, then behind in
 * their count, then silent for longer. */
static bool is_likelier(const struct detector_rank *a, const struct detector_rank *b)
{
    if (a->sample.in_collective != b->sample.in_collective) {
        return !a->sample.in_collective;
    }
    if (a->sample.collective != b->sample.collective) {
        return a->sample.collective < b->sample.collective;
    }
    return a->beat_ns < b->beat_ns;
}

/* Of the ranks that have been silent for at least half of their limit, the likeliest. */
static int find_silent(const struct detector *detector, int64_t now_ns)
{
    int best = -1;

    for (int i = 0; i < detector->rank_count; i++) {
        const struct detector_rank *rank = &detector->ranks[i];
        int64_t limit_ms = detector_silence_limit_ms(detector, i);

        if (rank->exited || limit_ms == 0 || now_ns - rank->beat_ns < limit_ms * NS_PER_MS / 2) {
            continue;
        }
        if (best < 0 || is_likelier(rank, &detector->ranks[best])) {
            best = i;
        }
    }
    return best;
}

/* All living ranks beat and none advances for longer than any of their phases allows. */
static int find_stalled(const struct detector *detector, int64_t now_ns)
{
    int64_t limit_ms = 0, advance_ns = 0;
    int best = -1;

    for (int i = 0; i < detector->rank_count; i++) {
        const struct detector_rank *rank = &detector->ranks[i];
        int64_t rank_limit_ms = detector->limits.silent_ms[rank->sample.phase];

        if (rank->exited) {
            continue;
        }
        if (rank_limit_ms == 0) {
            return -1;
        }
        limit_ms = rank_limit_ms > limit_ms ? rank_limit_ms : limit_ms;
        advance_ns = rank->advance_ns > advance_ns ? rank->advance_ns : advance_ns;
        if (best < 0 || is_likelier(rank, &detector->ranks[best])) {
            best = i;
        }
    }
    return best >= 0 && now_ns - advance_ns > limit_ms * NS_PER_MS ? best : -1;
}

bool detector_suspect(const struct detector *detector, int64_t now_ns, struct verdict *out_verdict)
{
    bool overdue = false;

    for (int i = 0; i < detector->rank_count; i++) {
        const struct detector_rank *rank = &detector->ranks[i];
        int64_t limit_ms = detector_silence_limit_ms(detector, i);

        if (rank->exited) {
            continue;
        }
        if (rank->stopped_ns != 0 &&
            now_ns - rank->stopped_ns >= detector->limits.stopped_ms * NS_PER_MS) {
            *out_verdict = blame_hang(detector, VERDICT_STOPPED, i, rank->stopped_ns, now_ns);
            return true;
        }
        overdue = overdue || (limit_ms != 0 && now_ns - rank->beat_ns > limit_ms * NS_PER_MS);
    }
    int silent = overdue ? find_silent(detector, now_ns) : -1;

    if (silent >= 0) {
        *out_verdict =
            blame_hang(detector, VERDICT_SILENT, silent, detector->ranks[silent].beat_ns, now_ns);
        return true;
    }
    int stalled = find_stalled(detector, now_ns);

    if (stalled >= 0) {
        *out_verdict = blame_hang(detector, VERDICT_STALLED, stalled,
                                  detector->ranks[stalled].advance_ns, now_ns);
        return true;
    }
    return false;
}

void detector_excuse(struct detector *detector, int rank_index, int64_t now_ns)
{
    struct detector_rank *rank = rank_at(detector, rank_index);

    rank->beat_ns = now_ns;
    rank->advance_ns = now_ns;
    rank->stopped_ns = rank->stopped_ns != 0 ? now_ns : 0;
}

void detector_convict(struct detector *detector, const struct verdict *verdict)
{
    detector->convicted = true;
    detector->conviction = *verdict;
}

/* What an exit code stands for when there is no failure record. */
static enum status status_of_code(int code)
{
    static const enum status told[] = {STATUS_USAGE,          STATUS_PARTIAL, STATUS_NO_CHECKPOINT,
                                       STATUS_NOT_OWNER,      STATUS_CORRUPT, STATUS_PEER_LOST,
                                       STATUS_OPTIONS_DIFFER, STATUS_STOPPED, STATUS_GAVE_UP,
                                       STATUS_INTERRUPTED};

    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        if (status_exit_code(told[i]) == code) {
            return told[i];
        }
    }
    return code == 0 ? STATUS_OK : STATUS_FAILED;
}

static enum status status_of_exit(const struct detector_exit *exit)
{
    if (exit->status != STATUS_OK) {
        return exit->status;
    }
    return exit->signal != 0 ? STATUS_FAILED : status_of_code(exit->code);
}

static enum suspicion suspicion_of(const struct detector_exit *exit)
{
    if (exit->ordered && exit->status == STATUS_OK) {
        return SUSPICION_TEARDOWN;
    }
    if (detector_exit_is_clean(exit)) {
        return SUSPICION_INDIRECT;
    }
    switch (status_of_exit(exit)) {
    case STATUS_PEER_LOST:
    case STATUS_ABORTED:
        return SUSPICION_CASCADE;
    case STATUS_TIMEOUT:
        return SUSPICION_INDIRECT;
    default:
        return SUSPICION_FAULT;
    }
}

/* The earliest of the strongest kind; -1 when only the agent's order ended ranks. */
static int find_first_cause(const struct detector *detector)
{
    enum suspicion best_suspicion = SUSPICION_TEARDOWN;
    int best = -1;

    for (int i = 0; i < detector->rank_count; i++) {
        const struct detector_rank *rank = &detector->ranks[i];
        enum suspicion suspicion = suspicion_of(&rank->exit);

        if (suspicion < best_suspicion || (best >= 0 && suspicion == best_suspicion &&
                                           rank->exit_order < detector->ranks[best].exit_order)) {
            best = i;
            best_suspicion = suspicion;
        }
    }
    return best;
}

/* The rank that was longest silent, or stopped, when it had to be killed; -1: none. */
static int find_hidden(const struct detector *detector)
{
    int best = -1;

    for (int i = 0; i < detector->rank_count; i++) {
        const struct detector_rank *rank = &detector->ranks[i];

        if (suspicion_of(&rank->exit) != SUSPICION_TEARDOWN ||
            (!rank->stopped_at_order && rank->silent_at_order_ms < DETECTOR_HIDDEN_SILENCE_MS)) {
            continue;
        }
        if (best < 0 || rank->silent_at_order_ms > detector->ranks[best].silent_at_order_ms) {
            best = i;
        }
    }
    return best;
}

static bool all_clean(const struct detector *detector, bool *out_saved)
{
    *out_saved = false;
    for (int i = 0; i < detector->rank_count; i++) {
        const struct detector_exit *exit = &detector->ranks[i].exit;

        if (!detector_exit_is_clean(exit)) {
            return false;
        }
        *out_saved = *out_saved || exit->code != 0;
    }
    return true;
}

/* Whether anything happened but clean leaves, the agent's own order and what follows from it. */
static bool any_failure(const struct detector *detector)
{
    int ordered_at = detector->exit_count;

    for (int i = 0; i < detector->rank_count; i++) {
        const struct detector_rank *rank = &detector->ranks[i];

        if (suspicion_of(&rank->exit) == SUSPICION_TEARDOWN && rank->exit_order < ordered_at) {
            ordered_at = rank->exit_order;
        }
    }
    for (int i = 0; i < detector->rank_count; i++) {
        const struct detector_rank *rank = &detector->ranks[i];
        enum suspicion suspicion = suspicion_of(&rank->exit);

        if (suspicion != SUSPICION_TEARDOWN && !detector_exit_is_clean(&rank->exit) &&
            (suspicion != SUSPICION_CASCADE || rank->exit_order < ordered_at)) {
            return true;
        }
    }
    return false;
}

static struct verdict blame_exit(const struct detector *detector, int rank_index)
{
    const struct detector_rank *rank = &detector->ranks[rank_index];

    return (struct verdict){.kind = rank->exit.signal != 0 ? VERDICT_SIGNAL : VERDICT_EXIT,
                            .rank = rank_index,
                            .signal = rank->exit.signal,
                            .exit_code = rank->exit.code,
                            .status = status_of_exit(&rank->exit),
                            .phase = rank->sample.phase,
                            .step = rank->sample.step,
                            .any_step = detector->any_step};
}

static struct verdict blame_hidden(const struct detector *detector, int rank_index)
{
    const struct detector_rank *rank = &detector->ranks[rank_index];

    return (struct verdict){.kind = rank->stopped_at_order ? VERDICT_STOPPED : VERDICT_SILENT,
                            .rank = rank_index,
                            .status = STATUS_TIMEOUT,
                            .phase = rank->sample.phase,
                            .step = rank->sample.step,
                            .any_step = detector->any_step,
                            .silent_ms = rank->silent_at_order_ms};
}

static struct verdict find_verdict(const struct detector *detector)
{
    bool saved;

    if (detector->convicted) {
        return detector->conviction;
    }
    if (all_clean(detector, &saved)) {
        return (struct verdict){.kind = saved ? VERDICT_SAVED : VERDICT_DONE,
                                .rank = -1,
                                .any_step = detector->any_step};
    }
    int first = find_first_cause(detector);
    int hidden = find_hidden(detector);
    bool explained = first >= 0 && suspicion_of(&detector->ranks[first].exit) == SUSPICION_FAULT;

    if (!any_failure(detector)) {
        return (struct verdict){.kind = VERDICT_ENDED, .rank = -1, .any_step = detector->any_step};
    }
    return hidden >= 0 && !explained ? blame_hidden(detector, hidden) : blame_exit(detector, first);
}

void detector_judge(struct detector *detector, struct verdict *out_verdict)
{
    CHECK(detector->exit_count == detector->rank_count);
    struct verdict verdict = find_verdict(detector);

    for (int i = 0; i < detector->rank_count; i++) {
        struct detector_rank *rank = &detector->ranks[i];

        if (i == verdict.rank) {
            rank->role = DETECTOR_INITIATING;
        } else if (detector_exit_is_clean(&rank->exit)) {
            rank->role = DETECTOR_CLEAN;
        } else if (suspicion_of(&rank->exit) == SUSPICION_TEARDOWN) {
            rank->role = DETECTOR_TEARDOWN;
            verdict.teardown_count++;
        } else {
            rank->role = DETECTOR_CASCADE;
            verdict.cascade_count++;
        }
    }
    *out_verdict = verdict;
}
