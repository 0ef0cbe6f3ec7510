/* The eight tiles of AMX in plain C. kernel_amx.c is built with them under -DPLTZ_TILES_IN_C, so that it is tested
 * on machines with AVX-512 and no AMX. All tiles are 16 rows of 64 bytes, as begin() sets them. They are slow and
 * never in an installed build. */
#include <string.h>

static _Thread_local uint8_t tiles[8][16][64];

static void load_tile(int n, const void *at, size_t stride) {
    for (size_t i = 0; i < 16; i++) memcpy(tiles[n][i], (const uint8_t *)at + i * stride, 64);
}

static void store_tile(int n, void *at, size_t stride) {
    for (size_t i = 0; i < 16; i++) memcpy((uint8_t *)at + i * stride, tiles[n][i], 64);
}

/* Add sums += rows @ weights, four bytes of a row with the four that lie together in a column. */
static void multiply_tiles(int sums, int rows, int weights, int with_sign) {
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 16; j++) {
            uint32_t sum;
            memcpy(&sum, &tiles[sums][i][4 * j], 4);
            for (int k = 0; k < 64; k++) {
                const uint8_t a = tiles[rows][i][k];
                const int8_t w = (int8_t)tiles[weights][k / 4][4 * j + k % 4];
                sum += (uint32_t)((with_sign ? (int8_t)a : a) * w);
            }
            memcpy(&tiles[sums][i][4 * j], &sum, 4);
        }
    }
}

#undef _tile_zero
#undef _tile_dpbusd
#undef _tile_dpbssd
#undef _tile_release
#define LOAD(n, at, stride) load_tile(n, at, (size_t)(stride))
#define STORE(n, at, stride) store_tile(n, at, (size_t)(stride))
#define _tile_zero(n) memset(tiles[n], 0, sizeof tiles[n])
#define _tile_dpbusd(sums, rows, weights) multiply_tiles(sums, rows, weights, 0)
#define _tile_dpbssd(sums, rows, weights) multiply_tiles(sums, rows, weights, 1)
#define _tile_release() ((void)0)
