/* The copy of blocks over all layers, within a device and between it and the host. block_copy.py launches it. */
#include "base.cuh"

#ifndef THREADS
#define THREADS 128
#define EACH 8 /* words that a thread has under way */
#endif
#define MOST 480 /* blocks of a launch: their numbers fit the 4 KB of a kernel's arguments */

struct Part { /* a tensor: block_copy.py, the same order. A block is `words` words of 16 bytes, a layer so many */
    const uint4 *source;
    uint4 *target;
    int64_t source_layer, target_layer;
    int words;
};
struct Copy { /* block begins[i] goes to block ends[i] in each layer */
    Part part[2];
    int parts, layers, blocks;
    int32_t begins[MOST], ends[MOST];
};

/* Copies blocks by as many CTAs as there are. Each has a share of a tensor's words, in the order of layers, blocks and
 * words. */
KERNEL(THREADS) copy_pages(const GRID_CONSTANT Copy copy) {
    for (int n = 0; n < copy.parts; n++) {
        const Part &p = copy.part[n];
        const int64_t all = (int64_t)p.words * copy.blocks * copy.layers, ctas = gridDim.x;
        const int64_t share = (all + ctas * THREADS - 1) / (ctas * THREADS) * THREADS;
        const int64_t first = blockIdx.x * share + threadIdx.x, left = min(share, all - blockIdx.x * share);
        int64_t layer = first / p.words / copy.blocks;
        int block = (int)(first / p.words - layer * copy.blocks), w = (int)(first % p.words);
        for (int64_t at = threadIdx.x; at < left; at += THREADS * EACH) {
            uint4 word[EACH];
            uint4 *to[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                to[i] = nullptr;
                if (at + i * THREADS >= left) continue;
                to[i] = p.target + layer * p.target_layer + (int64_t)copy.ends[block] * p.words + w;
                word[i] = p.source[layer * p.source_layer + (int64_t)copy.begins[block] * p.words + w];
                w += THREADS % p.words;
                block += THREADS / p.words + (w >= p.words);
                w -= w >= p.words ? p.words : 0;
                for (; block >= copy.blocks; block -= copy.blocks) layer++;
            }
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (to[i]) *to[i] = word[i];
        }
    }
}
