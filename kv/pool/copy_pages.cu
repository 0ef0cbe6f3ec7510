/* The copy of blocks over all layers, between the memories of a device and of the host. block_copy.py launches it. */
#include "base.cuh"

#define EACH 4 /* words of a thread */

/* Copies block begins[i] to block ends[i] in each layer, grid (blocks, layers, pieces). A block is `words` words of 16
 * bytes, a layer source_layer and target_layer of them. */
KERNEL(128)
copy_pages(const uint4 *source, uint4 *target, const int64_t *begins, const int64_t *ends, int64_t source_layer,
           int64_t target_layer, int words) {
    source += blockIdx.y * source_layer + begins[blockIdx.x] * words;
    target += blockIdx.y * target_layer + ends[blockIdx.x] * words;
    const int at = (int)(blockIdx.z * 128 * EACH + threadIdx.x);
    uint4 word[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (at + i * 128 < words) word[i] = source[at + i * 128];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (at + i * 128 < words) target[at + i * 128] = word[i];
}
