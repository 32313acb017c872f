/* One rank of a training whose every number is known: the weights, batches, losses, norms and final
 * weights that transformers and torch computed (tests/refs/hf_gpt2).
 *
 *     train_reference_rank MODEL SETUP MICRO_BATCH TP PP [SAVE TENSOR]
 *
 * (RANK and WORLD_SIZE as everywhere.) Puts the reference weights into its part of the model,
 * trains 5 steps on the reference batches and compares. Leaves with 0 when all agrees, else with 1
 * and a line for each difference. With SAVE it saves there at step 2, but on the last rank one bit
 * of TENSOR has flipped before, as in faulty memory.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/json.h"
#include "ckpt/base/log.h"
#include "ckpt/base/mem.h"
#include "tests/support/npy.h"
#include "tests/support/safetensors.h"
#include "train/trainer.h"

#define STEPS 5
#define WORDS_MAX 64
#define HIDDEN 64
#define HEADS 4
#define SEQUENCE 64
#define BATCH_ROWS 4
#define LOSS_TOLERANCE 1e-6   /* relative; torch's own float32 noise is 2e-7 */
#define NORM_TOLERANCE 1e-5   /* relative */
#define WEIGHT_TOLERANCE 5e-5 /* absolute; Adam amplifies the noise of tiny gradients */

struct reference {
    double losses[STEPS], norms[STEPS];
    struct npy batches; /* [5,4,T + 1] */
    int differences;
    struct gpt *flip_in; /* NULL: no bit flips */
    const char *flip_tensor;
};

static _Atomic int no_signal;

/* --- the reference ------------------------------------------------------------------------ */

static enum status read_numbers(const char *model, const char *setup, struct reference *out)
{
    enum status st = STATUS_OK;
    cJSON *info = NULL, *at = NULL;
    char *path = NULL;
    const char *const keys[] = {"models", model, "train", setup};

    TRY(st, mem_format(&path, "%s/hf_gpt2/info.json", getenv("HOLDFAST_TEST_REFS")), done);
    TRY(st, json_read_file(fs_posix(), path, &info), done);
    at = info;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        TRY(st, json_get_object(at, path, keys[i], &at), done);
    }
    for (int step = 0; step < STEPS; step++) {
        out->losses[step] =
            cJSON_GetArrayItem(cJSON_GetObjectItem(at, "losses"), step)->valuedouble;
        out->norms[step] =
            cJSON_GetArrayItem(cJSON_GetObjectItem(at, "grad_norms_before_clip"), step)
                ->valuedouble;
    }
done:
    cJSON_Delete(info);
    mem_free(&path);
    return st;
}

static enum status get_sample(void *context, uint64_t sample, int32_t *out_tokens)
{
    const struct reference *reference = context;
    const int32_t *rows = reference->batches.elements;

    memcpy(out_tokens, rows + sample % (5 * BATCH_ROWS) * (SEQUENCE + 1),
           (SEQUENCE + 1) * sizeof(int32_t));
    return STATUS_OK;
}

/* --- weights ------------------------------------------------------------------------------ */

static const struct {
    const char *ours, *theirs;
    bool transposed; /* they store [in,out] */
} names[] = {
    {"embedding.word_embeddings.weight", "wte.weight", false},
    {"embedding.position_embeddings.weight", "wpe.weight", false},
    {"decoder.final_layernorm.weight", "ln_f.weight", false},
    {"decoder.final_layernorm.bias", "ln_f.bias", false},
    {"input_layernorm.weight", "ln_1.weight", false},
    {"input_layernorm.bias", "ln_1.bias", false},
    {"self_attention.linear_qkv.weight", "attn.c_attn.weight", true},
    {"self_attention.linear_qkv.bias", "attn.c_attn.bias", true},
    {"self_attention.linear_proj.weight", "attn.c_proj.weight", true},
    {"self_attention.linear_proj.bias", "attn.c_proj.bias", false},
    {"pre_mlp_layernorm.weight", "ln_2.weight", false},
    {"pre_mlp_layernorm.bias", "ln_2.bias", false},
    {"mlp.linear_fc1.weight", "mlp.c_fc.weight", true},
    {"mlp.linear_fc1.bias", "mlp.c_fc.bias", false},
    {"mlp.linear_fc2.weight", "mlp.c_proj.weight", true},
    {"mlp.linear_fc2.bias", "mlp.c_proj.bias", false},
};

static enum status find_theirs(const struct safetensors *file, const struct gpt_param *param,
                               struct safetensor *out_tensor, bool *out_transposed)
{
    int layer = -1, skip = 0;
    char name[200];

    (void)sscanf(param->name, "decoder.layers.%d.%n", &layer, &skip);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(param->name + skip, names[i].ours) == 0) {
            if (skip > 0) {
                snprintf(name, sizeof(name), "transformer.h.%d.%s", layer, names[i].theirs);
            } else {
                snprintf(name, sizeof(name), "transformer.%s", names[i].theirs);
            }
            *out_transposed = names[i].transposed && param->dims == 2;
            return safetensors_find(file, name, out_tensor);
        }
    }
    return FAIL(STATUS_NOT_FOUND, "no tensor '%s' in the reference", param->name);
}

/* Our row h, (q k v), d is their row (q k v), h, d. */
static uint64_t their_row(const struct gpt_param *param, uint64_t row)
{
    uint64_t head = HIDDEN / HEADS;

    if (strstr(param->name, "linear_qkv") == NULL) {
        return row;
    }
    return row / head % 3 * HIDDEN + row / (3 * head) * head + row % head;
}

/* No gradient in exact arithmetic, so Adam only amplifies its rounding noise. */
static bool is_key_bias(const struct gpt_param *param, uint64_t row)
{
    return strstr(param->name, "linear_qkv.bias") != NULL && row / (HIDDEN / HEADS) % 3 == 1;
}

/* Fills this rank's parts from a file, or compares them with it. */
static enum status walk_weights(struct gpt *gpt, const char *file_name, bool fill,
                                struct reference *reference)
{
    enum status st = STATUS_OK;
    struct safetensors *file = NULL;

    TRY(st, safetensors_open_ref(file_name, &file), done);
    for (size_t i = 0; i < gpt_param_count(gpt); i++) {
        const struct gpt_param *param = &gpt_params(gpt)[i];
        struct safetensor theirs;
        bool transposed = false;
        double worst = 0;
        TRY(st, find_theirs(file, param, &theirs, &transposed), done);
        for (uint64_t r = 0; r < param->box.extent[0]; r++) {
            for (uint64_t c = 0; c < param->columns; c++) {
                uint64_t row = their_row(param, param->box.offset[0] + r);
                uint64_t column = (param->dims == 2 ? param->box.offset[1] : 0) + c;
                uint64_t columns = param->dims == 2 ? param->shape[1] : 1;
                float *ours = gpt_param_data(gpt) + param->begin + r * param->columns + c;
                float value = theirs.values[transposed ? column * param->shape[0] + row
                                                       : row * columns + column];
                if (fill) {
                    *ours = value;
                } else if (!is_key_bias(param, param->box.offset[0] + r)) {
                    worst = fmax(worst, fabs((double)*ours - (double)value));
                }
            }
        }
        if (!(worst <= WEIGHT_TOLERANCE)) {
            printf("'%s' differs by %g after %d steps\n", param->name, worst, STEPS);
            reference->differences++;
        }
    }
done:
    safetensors_close(&file);
    return st;
}

/* --- the run ------------------------------------------------------------------------------ */

static void flip_bit(struct gpt *gpt, const char *tensor)
{
    for (size_t i = 0; i < gpt_param_count(gpt); i++) {
        if (strcmp(gpt_params(gpt)[i].name, tensor) == 0) {
            uint32_t word;
            float *value = gpt_param_data(gpt) + gpt_params(gpt)[i].begin + 5;
            memcpy(&word, value, sizeof(word));
            word ^= 1;
            memcpy(value, &word, sizeof(word));
        }
    }
}

static void compare_step(void *context, uint64_t step, double loss, double norm)
{
    struct reference *reference = context;
    double loss_error = fabs(loss / reference->losses[step - 1] - 1);
    double norm_error = fabs(norm / reference->norms[step - 1] - 1);

    if (!(loss_error <= LOSS_TOLERANCE) || !(norm_error <= NORM_TOLERANCE)) {
        printf("step %d: loss %.9g (error %.2g), norm %.9g (error %.2g)\n", (int)step, loss,
               loss_error, norm, norm_error);
        reference->differences++;
    }
    if (reference->flip_in != NULL && step == 2) {
        flip_bit(reference->flip_in, reference->flip_tensor);
    }
}

/* The flags of tests/refs/hf_gpt2/info.json; "$N" is the program's argument N. */
static const char flags[] =
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
    "--max-position-embeddings 128 --vocab-size 512 --attention-dropout 0 --hidden-dropout 0 --lr "
    "1e-3 "
    "--lr-decay-style constant --weight-decay 0.1 --clip-grad 1.0 --adam-beta2 0.95 "
    "--train-iters 5 --global-batch-size 4 --mock-data --micro-batch-size $3 "
    "--tensor-model-parallel-size $4 --pipeline-model-parallel-size $5";

static enum status parse(char **argv, const struct run_env *env, struct train_options *options,
                         struct train_plan *plan)
{
    enum status st = STATUS_OK;
    const char *texts[WORDS_MAX];
    char *words[WORDS_MAX] = {argv[0]}, *rest = NULL, text[sizeof(flags)];
    struct option_positionals positionals = {.texts = texts};
    int count = 1;
    bool help = false;

    memcpy(text, flags, sizeof(flags));
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        words[count++] = word[0] == '$' ? argv[word[1] - '0'] : word;
    }
    TRY(st, options_parse(&train_options_table, count, words, options, &positionals, &help), done);
    TRY(st,
        options_set(&train_options_table, "vocab-size",
                    strcmp(argv[1], "a500") == 0 ? "500" : "512", options),
        done);
    if (argv[6] != NULL) {
        TRY(st, options_set(&train_options_table, "save", argv[6], options), done);
        TRY(st, options_set(&train_options_table, "save-interval", "2", options), done);
    }
    TRY(st, train_options_resolve(options, env->world_size, plan), done);
done:
    return st;
}

static enum status run(char **argv, struct reference *reference)
{
    enum status st = STATUS_OK;
    static struct train_options options;
    static struct run_env env;
    struct train_plan plan;
    struct trainer *trainer = NULL;
    struct comm *world = NULL;
    struct progress *progress = NULL;
    char file[128];

    TRY(st, run_env_read(&env), done);
    env.has_agent = false; /* there is none to read a progress page */
    TRY(st, progress_open(&env, &progress), done);
    TRY(st, parse(argv, &env, &options, &plan), done);
    TRY(st, read_numbers(argv[1], argv[2], reference), done);
    snprintf(file, sizeof(file), "hf_gpt2/%s/train_batches.npy", argv[1]);
    TRY(st, npy_read_ref(file, &reference->batches), done);
    struct comm_config meeting = {.rank = env.rank,
                                  .size = env.world_size,
                                  .rendezvous_dir = env.run_dir,
                                  .init_timeout_ms = 20000,
                                  .call_timeout_ms = 20000};
    TRY(st, comm_open(&meeting, &world), done);
    struct trainer_config config = {.options = &options,
                                    .plan = &plan,
                                    .env = &env,
                                    .fs = fs_posix(),
                                    .world = world,
                                    .progress = progress,
                                    .train = {.context = reference, .get = get_sample},
                                    .stop_signal = &no_signal,
                                    .out = stdout,
                                    .thread_count = 1,
                                    .on_step = compare_step,
                                    .on_step_context = reference};
    TRY(st, trainer_create(&config, &trainer), done);
    snprintf(file, sizeof(file), "hf_gpt2/%s/model.safetensors", argv[1]);
    TRY(st, walk_weights(trainer_gpt(trainer), file, true, reference), done);
    if (argv[6] != NULL && env.rank == env.world_size - 1) {
        reference->flip_in = trainer_gpt(trainer);
        reference->flip_tensor = argv[7];
    }
    TRY(st, trainer_run(trainer), done);
    if (strcmp(argv[1], "a") == 0) {
        TRY(st,
            walk_weights(trainer_gpt(trainer), "hf_gpt2/a/after5/model.safetensors", false,
                         reference),
            done);
    }
done:
    trainer_destroy(&trainer);
    comm_close(&world);
    progress_close(&progress);
    npy_deinit(&reference->batches);
    return st;
}

int main(int argc, char **argv)
{
    struct reference reference = {0};

    if (argc != 6 && argc != 8) {
        fprintf(stderr,
                "usage: train_reference_rank MODEL SETUP MICRO_BATCH TP PP [SAVE TENSOR]\n");
        return 2;
    }
    log_init(LOG_LEVEL_WARN, "");
    enum status st = run(argv, &reference);
    if (st != STATUS_OK) {
        status_print("train_reference_rank", true);
        return status_exit_code(st);
    }
    return reference.differences == 0 ? 0 : 1;
}
