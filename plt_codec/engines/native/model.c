/* A model made of the tensors of a bundle (weights.py), and the kernel that will compute with it. */
#include "model.h"

#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "memory.h"

static size_t packed(int n, int k) { return (size_t)round_up(n, 16) * (size_t)round_up(k, 64); }

/* Return the bytes of all matrices. They lie in one piece, which huge pages serve. A step of a few rows reads all of
 * it, and only 64 lines of each small page. */
static size_t packed_model(const Model *m) {
    const int inner = m->heads * m->head_dim, qkv = (m->heads + 2 * m->kv_heads) * m->head_dim;
    const size_t layer = packed(qkv, m->d) + packed(m->d, inner) + (m->gated ? 2 : 1) * packed(m->hidden, m->d) +
                         packed(m->d, m->hidden);
    return packed(m->classes, m->d) + packed(m->vocab, m->d) + (size_t)m->layers * layer;
}

/* Mark the eights of inputs of a block of channels that do not fit 16 bits. One does not if, in some channel, its
 * inputs at k % 4 in 0, 1 or those in 2, 3 have positive weights above 258 in sum, or negative ones. Times 127 that
 * is too much. */
static void mark_wide(Matrix *m) {
    for (int i = 0; i < m->blocks * m->stride / 8; i++) {
        const int8_t *w = m->w + (size_t)i * 128;
        int wide = 0;
        for (int j = 0; j < 64; j += 2) {
            const int sum = w[j] + w[j + 1] + w[j + 64] + w[j + 65],
                      size = abs(w[j]) + abs(w[j + 1]) + abs(w[j + 64]) + abs(w[j + 65]);
            wide |= size + abs(sum) > 2 * 258; /* twice the sum of the positive ones, or of the others */
        }
        m->wide[i / 8] |= (uint8_t)(wide << i % 8);
    }
}

/* Pack the next matrix of the model. */
static int pack(Model *model, Matrix *out, const int8_t *w, const int32_t *m, int n, int k, int centre) {
    out->n = n;
    out->centred = centre != 0;
    out->narrow = 1;
    out->k = k;
    out->blocks = round_up(n, 16) / 16;
    out->stride = round_up(k, 64);
    out->w = model->weights + model->packed;
    model->packed += packed(n, k);
    out->offset = grab((size_t)out->blocks * 16 * sizeof(int32_t));
    out->m = grab((size_t)out->blocks * 16 * sizeof(int32_t));
    out->sum = grab((size_t)out->blocks * 16 * sizeof(int32_t));
    out->wide = model->kernel->reads_wide ? grab((size_t)out->blocks * out->stride / 64) : 0;
    if (!out->offset || !out->m || !out->sum || (model->kernel->reads_wide && !out->wide)) return NO_MEMORY;
    for (int c = 0; c < n; c++) {
        int8_t *to = out->w + (size_t)(c / 16) * 16 * out->stride + (c % 16) * 4;
        int32_t sum = 0;
        int64_t size = 0;
        for (int i = 0; i < k; i++) {
            to[(i / 4) * 64 + i % 4] = w[(size_t)c * k + i];
            sum += w[(size_t)c * k + i];
            size += abs(w[(size_t)c * k + i]);
        }
        if (size * 255 * m[c] >> 24 >= 1 << 30) out->narrow = 0; /* inputs lie in -127..127 or 0..254; below 2^60 */
        out->sum[c] = sum;
        out->offset[c] = -centre * sum;
        out->m[c] = m[c];
    }
    if (out->wide) mark_wide(out);
    return 0;
}

static void unpack(Matrix *m) {
    free(m->offset);
    free(m->sum);
    free(m->wide);
    free(m->m);
}

EXPORT void pltz_model_free(Model *m) {
    if (!m) return;
    for (int i = 0; m->layer && i < m->layers; i++) {
        unpack(&m->layer[i].qkv);
        unpack(&m->layer[i].out);
        unpack(&m->layer[i].gate);
        unpack(&m->layer[i].up);
        unpack(&m->layer[i].down);
    }
    unpack(&m->class);
    unpack(&m->member);
    free(m->layer);
    free(m->weights);
    free(m->class_b);
    free(m->member_b);
    free(m->zeros);
    free(m);
}

static const Kernel *const KERNELS[] = { /* best first */
#if defined(PLTZ_X86)
    &pltz_amx, &pltz_vnni, &pltz_avx2,
#endif
#if defined(PLTZ_ARM)
    &pltz_neon,
#endif
    &pltz_plain,
};
enum { KERNEL_COUNT = sizeof KERNELS / sizeof KERNELS[0] };

/* Return the name of the n-th kernel this machine can run, best first; NULL after the last. */
EXPORT const char *pltz_kernel(int n) {
    for (int i = 0; i < KERNEL_COUNT; i++) {
        if (KERNELS[i]->supported() && n-- == 0) return KERNELS[i]->name;
    }
    return 0;
}

static const Kernel *find_kernel(const char *name) {
    for (int i = 0; i < KERNEL_COUNT; i++) {
        if (!strcmp(KERNELS[i]->name, name)) return KERNELS[i]->supported() ? KERNELS[i] : 0;
    }
    return 0;
}

static int32_t *copy_ints(const int32_t *from, int n) {
    int32_t *to = grab((size_t)round_up(n, 16) * sizeof(int32_t));
    if (to) memcpy(to, from, (size_t)n * sizeof(int32_t));
    return to;
}

static void fill_tables(Model *m, const int32_t *exp) {
    for (int i = 0; i < 64; i++) m->key_weight[i] = (uint16_t)((exp[i] + 16) >> 5);
    for (int e = 0; e < KEY_STEPS; e++) m->key_weights[e] = m->key_weight[e & 63] >> (e >> 6);
    for (int e = 0; e < SYMBOL_STEPS; e++) m->symbol_weights[e] = (uint32_t)exp[e & 63] >> (e >> 6);
}

/* Read the additional tensors of contract 2: norm before the head, gate function, then gate and two norms per layer. */
static int read_gated(Model *m, const void *const *tensors) {
    m->norm_out = tensors[0];
    m->act = tensors[1];
    m->zeros = grab((size_t)round_up(m->hidden, 16) * sizeof(int32_t));
    int bad = !m->zeros;
    for (int i = 0; !bad && i < m->layers; i++) {
        const void *const *t = tensors + 2 + 4 * i;
        Layer *l = &m->layer[i];
        bad = pack(m, &l->gate, t[0], t[1], m->hidden, m->d, 128);
        l->norm_in = t[2];
        l->norm_mid = t[3];
    }
    return bad;
}

/* Make a model. shape: the 12 numbers of weights.Shape, in its order. tensors: the 13 of the whole model, then 9 per
 * layer, in the order read here. For contract 2, 2 of the model and 4 per layer follow. weights.Weights has checked
 * them, and they stay alive as long as the model. NULL: no memory or no such kernel. */
EXPORT Model *pltz_model_new(const int32_t *shape, const void *const *tensors, const char *kernel) {
    Model *m = calloc(1, sizeof *m);
    if (!m) return 0;
    m->vocab = shape[0];
    m->d = shape[1];
    m->layers = shape[2];
    m->heads = shape[3];
    m->kv_heads = shape[4];
    m->head_dim = shape[5];
    m->hidden = shape[6];
    m->memory = shape[8];
    m->norm_gain = (uint32_t)shape[9];
    m->head_gain = (uint32_t)shape[10];
    m->gated = shape[11];
    m->classes = m->vocab / CLASS;
    m->group = m->heads / m->kv_heads;
    m->dp = round_up(m->head_dim, 4);
    m->dv = round_up(m->head_dim, 16);
    m->width = round_up(m->d, 16);
    m->kernel = find_kernel(kernel);
    m->layer = calloc((size_t)m->layers, sizeof(Layer));
    m->embed_w = tensors[0];
    m->embed_m = tensors[1];
    m->shift_w = tensors[5];
    m->shift_m = tensors[6];
    m->cos = tensors[10];
    m->sin = tensors[11];
    m->phase = tensors[12];
    m->class_b = copy_ints(tensors[4], m->classes);
    m->member_b = copy_ints(tensors[8], m->vocab);
    m->weights = grab(packed_model(m));
    int bad = !m->kernel || !m->layer || !m->weights || !m->class_b || !m->member_b;
    bad = bad || pack(m, &m->class, tensors[2], tensors[3], m->classes, m->d, 128);
    bad = bad || pack(m, &m->member, tensors[0], tensors[7], m->vocab, m->d, 128);
    const int inner = m->heads * m->head_dim, qkv = (m->heads + 2 * m->kv_heads) * m->head_dim;
    for (int i = 0; !bad && i < m->layers; i++) {
        const void *const *t = tensors + 13 + 9 * i;
        Layer *l = &m->layer[i];
        bad = pack(m, &l->qkv, t[0], t[1], qkv, m->d, 128) || pack(m, &l->out, t[2], t[3], m->d, inner, 128) ||
              pack(m, &l->up, t[4], t[5], m->hidden, m->d, 128) ||
              pack(m, &l->down, t[6], t[7], m->d, m->hidden, m->gated ? 128 : 0);
        l->heat = t[8];
    }
    if (m->gated) bad = bad || read_gated(m, tensors + 13 + 9 * m->layers);
    if (bad) {
        pltz_model_free(m);
        return 0;
    }
    fill_tables(m, tensors[9]);
    return m;
}
