/* A model as the engine computes with it: its shape, its matrices in the order of the kernels, its tables. It is
 * read only once made. */
#ifndef PLTZ_MODEL_H
#define PLTZ_MODEL_H

#include "kernel.h"

typedef struct {
    Matrix qkv, out, gate, up, down;
    const int32_t *heat, *norm_in, *norm_mid; /* gate and norms: contract 2 */
} Layer;

typedef struct {
    int vocab, d, layers, heads, kv_heads, head_dim, hidden, memory, gated;
    uint32_t norm_gain, head_gain;
    int classes, group, dp, dv, width; /* width: residuals per row, rounded up */
    const Kernel *kernel;
    Layer *layer;
    Matrix class, member;
    int8_t *weights;                   /* all matrices, one after the other */
    size_t packed;                     /* bytes of them so far */
    const int8_t *embed_w, *shift_w;
    const int32_t *embed_m, *shift_m, *phase;
    const int16_t *cos, *sin, *act;
    const int32_t *norm_out;
    int32_t *class_b, *member_b, *zeros;
    uint16_t key_weight[64];
    uint32_t key_weights[KEY_STEPS], symbol_weights[SYMBOL_STEPS];
} Model;

#endif
