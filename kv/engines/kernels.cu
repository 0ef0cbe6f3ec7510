/* Kernels of the form `predictive` of KV: its entropy coding, its sums and its last step.
 *
 *     decode_streams   rANS, a warp per group of 32 tokens, in lockstep; same integers as ans.c (FORMAT.md, "Streams")
 *     look_ahead       what 32 tokens have seen at each step, for the encoder, which goes backwards; and their sums
 *     encode_streams   counts the words, then writes them; the same bytes as ans.c from the same integers
 *     add_residual     prediction + integer x step, in the type of the next product
 *     place_layer      one layer's rows to keys, turned to their positions, and values; and to inputs of the next layer
 *
 * cuda.py compiles and launches them. On a CPU the tests run this source by emulate.h.
 *
 * Bounds: a stream is read behind a test of its end, and zeros beyond it. Symbols, tables and counts are bounded by
 * construction, so no stream writes out of bounds, and every loop has a length that the stream does not choose. */
#include "base.cuh"

#ifndef PLTZ_EMULATE
DEV float of_half(uint16_t v) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(v));
    return out;
}
DEV uint16_t to_half(float v) {
    uint16_t out;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(v));
    return out;
}
DEV uint32_t two_bf16(float low, float high) { /* to nearest, ties to even */
    uint32_t out;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
    return out;
}
DEV uint16_t to_bf16(float v) { return (uint16_t)two_bf16(v, 0.0f); }
DEV uint32_t bits_of(float v) { return __float_as_uint(v); }
DEV float of_bits(uint32_t v) { return __uint_as_float(v); }
#else
static inline float of_half(uint16_t v) {
    _Float16 h;
    memcpy(&h, &v, 2);
    return (float)h;
}
static inline uint16_t to_half(float v) {
    const _Float16 h = (_Float16)v;
    uint16_t out;
    memcpy(&out, &h, 2);
    return out;
}
static inline uint32_t bits_of(float v) {
    uint32_t out;
    memcpy(&out, &v, 4);
    return out;
}
static inline float of_bits(uint32_t v) {
    float out;
    memcpy(&out, &v, 4);
    return out;
}
static inline uint16_t to_bf16(float v) { /* to nearest, ties to even; NaN stays one */
    const uint32_t u = bits_of(v);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
#endif

#define ALL 0xffffffffu
enum { LANES = 32, PRECISION = 12, SLOTS = 1 << PRECISION, SYMBOLS = 32, HALF = 15, ESCAPE = 31 };
enum { TABLES = 29, BASE = 24, TOP = 28, CLASS_BITS = 4, CLASS_LEVELS = 4, COARSEST = 12, SECTION = 4 };
enum { MOST_LOW = 10, MEAN_UNIT = 16, PRIOR = 8 * MEAN_UNIT, MOST_SHIFT = 10 };
enum { WARPS = 8, KEPT = 6, ROW = 34 }; /* warps per CTA; numbers kept per lane; int16 per row of the square */
enum { RING = 128 };                    /* words of a group in shared memory */
enum { F32 = 0, F16 = 1, BF16 = 2 };        /* types of KV */
#define LOWEST ((uint32_t)1 << 16)

/* ---- numbers */

DEV float load(const void *from, int64_t at, int type) {
    if (type == F32) return ((const float *)from)[at];
    const uint16_t v = ((const uint16_t *)from)[at];
    return type == F16 ? of_half(v) : of_bits((uint32_t)v << 16);
}
DEV void store(void *to, int64_t at, float v, int type) {
    if (type == F32)
        ((float *)to)[at] = v;
    else
        ((uint16_t *)to)[at] = type == F16 ? to_half(v) : to_bf16(v);
}
/* ---- decode_streams */

/* The words of a group in a section. The next ones lie in a ring in shared memory, 64 at least, and each lane has one
 * more that is on its way from memory. */
struct Words {
    const uint16_t *words;
    uint16_t *ring;
    int64_t next, end;   /* of the words that are not asked for yet; of the section */
    int used, room;      /* words taken from the ring; where the next 32 go */
    uint32_t later, low; /* the word on its way; the lanes before this one */
};

DEV uint32_t more_words(Words &w, int lane) {
    const int64_t at = w.next + lane;
    w.next += LANES;
    return at < w.end ? w.words[at] : 0;
}
DEV void put_words(Words &w, int lane) {
    w.ring[(w.room + lane) & (RING - 1)] = (uint16_t)w.later;
    w.room += LANES;
    w.later = more_words(w, lane);
    __syncwarp();
}
DEV void open_words(Words &w, const uint16_t *words, int64_t begin, int64_t end, int lane) {
    __syncwarp();
    w.words = words, w.next = begin, w.end = end, w.used = w.room = 0;
    w.later = more_words(w, lane);
    put_words(w, lane);
    put_words(w, lane);
}
DEV bool used_up(const Words &w) { return w.next - LANES - w.room + w.used == w.end; }

/* Give each lane whose state is too small a word, in the order of lanes. */
DEV void refill(Words &w, uint32_t &x, bool small, int lane) {
    const uint32_t mask = __ballot_sync(ALL, small);
    const uint32_t word = w.ring[(w.used + __popc(mask & w.low)) & (RING - 1)];
    x = small ? x << 16 | word : x;
    w.used += __popc(mask);
    if (w.room - w.used < 2 * LANES) put_words(w, lane); /* the same in all lanes; at most 32 are taken at once */
}

DEV int32_t quarter_log(uint32_t v) {
    const int msb = 31 - __clz((int)v);
    const uint32_t rest = msb >= 2 ? v >> (msb - 2) : v << (2 - msb);
    return 4 * msb + (int32_t)(rest & 3);
}

DEV int shift_of(int32_t seen, int32_t expected) {
    const int32_t by = quarter_log((uint32_t)(seen + PRIOR)) - quarter_log((uint32_t)(expected + PRIOR));
    return min(max(by, -(int)MOST_SHIFT), (int)MOST_SHIFT);
}

/* Table, low bits, and table of the expectation of a step, as table_of in ans.c. */
struct Step {
    int table, low, plain;
};
DEV Step step_of(int level, int first, int shift) {
    Step s;
    int t = ((level - first) >> 1) + BASE;
    s.plain = min(max(t, 0), (int)TOP);
    t += shift;
    s.low = min(max((t - TOP + 3) >> 2, 0), (int)MOST_LOW);
    s.table = min(max(t - 4 * s.low, 0), (int)TOP);
    return s;
}

/* A warp decodes a stream of a group. Streams have `span` layers, but the last. A launch decodes layers [first, last):
 * whole streams side by side, or some layers of the only one. Then `kept`, (groups, 32, KEPT), holds each lane's state
 * from launch to launch. Integers go to q (layers, tokens, width), the sums of each stream to sums (streams, tokens,
 * 2). `slots`: (TABLES, SLOTS) symbols. `entries`: (TABLES, SYMBOLS) frequency << 16 | first slot. `mean`: (TABLES,).
 * `bad`: not 0 afterwards if a stream is damaged. */
KERNEL(256) decode_streams(const uint16_t *words, const int32_t *ends, const uint32_t *states, const uint8_t *slots,
                           const uint32_t *entries, const uint16_t *mean, const int16_t *level, uint32_t *kept,
                           int16_t *q, uint8_t *classes, uint32_t *sums, int32_t *bad, int groups, int tokens,
                           int layers, int width, int point, int per_lane, int span, int streams, int first_layer,
                           int last_layer) {
    uint8_t *const lut = shared();
    uint32_t *const table = (uint32_t *)(lut + TABLES * SLOTS);
    int32_t *const usual = (int32_t *)(table + TABLES * SYMBOLS);
    const int lane = (int)(threadIdx.x & 31), warp = (int)(threadIdx.x >> 5);
    int16_t *const square = (int16_t *)(usual + 32) + warp * (LANES * ROW + RING);
    for (int i = (int)threadIdx.x; i < TABLES * SLOTS / 16; i += 32 * WARPS)
        ((uint4 *)lut)[i] = ((const uint4 *)slots)[i];
    for (int i = (int)threadIdx.x; i < TABLES * SYMBOLS; i += 32 * WARPS) table[i] = entries[i];
    for (int i = (int)threadIdx.x; i < TABLES; i += 32 * WARPS) usual[i] = mean[i];
    __syncthreads();
    const int group = (int)blockIdx.x * WARPS + warp;
    if (group >= groups) return; /* the whole warp */

    const bool by_section = per_lane == 1;
    const int stream = streams > 1 ? first_layer / span + (int)blockIdx.y : 0;
    if (streams > 1) first_layer = stream * span, last_layer = stream + 1 < streams ? first_layer + span : layers;
    const bool finishes = streams > 1 || last_layer == layers;
    uint32_t *const mine = kept + ((int64_t)group * LANES + lane) * KEPT;
    const int section = by_section ? first_layer / SECTION : 0;
    const int32_t *end = ends + (int64_t)section * groups + group;
    Words w;
    w.ring = (uint16_t *)square + LANES * ROW, w.low = (1u << lane) - 1;
    open_words(w, words, section || group ? end[-1] : 0, end[0], lane);
    const bool begins = streams > 1 || first_layer == 0;
    const uint32_t zeroth = states[(int64_t)group * LANES + lane]; /* tells the class */
    uint32_t x = begins ? states[((int64_t)stream * groups + group) * LANES + lane] : mine[0];
    int32_t seen = begins ? 0 : (int32_t)mine[1], expected = begins ? 0 : (int32_t)mine[2];
    uint32_t kind = begins ? 0 : mine[3], a = begins ? 0 : mine[4], b = begins ? 0 : mine[5];
    bool wrong = begins && x < LOWEST;

    for (int row = 0; row < per_lane; row++) {
        const int64_t start = ((int64_t)group * per_lane + row) * LANES;
        if (start >= tokens) break;
        const int64_t token = start + lane;
        const bool live = token < tokens;
        if (begins) {
            kind = (stream ? zeroth : x) & ((1 << CLASS_BITS) - 1);
            seen = expected = 0;
            a = stream ? 0 : kind, b = 0;
            if (!stream) {
                if (live) x >>= CLASS_BITS, classes[token] = (uint8_t)kind;
                refill(w, x, live && x < LOWEST, lane);
            }
        }
        const int first = point + COARSEST - CLASS_LEVELS * (int)kind;
        for (int layer = first_layer; layer < last_layer; layer++) {
            if (layer > first_layer && by_section && layer % SECTION == 0) {
                wrong |= !used_up(w);
                end += groups;
                open_words(w, words, end[-1], end[0], lane);
            }
            const int32_t above_seen = seen >> 1, above_expected = expected >> 1;
            seen = expected = 0;
            const int16_t *const levels = level + (int64_t)layer * width;
            for (int j = 0; j < width; j += LANES) {
                const int count = min(width - j, (int)LANES);
                const int shift = shift_of(seen + above_seen, expected + above_expected);
                const int of_lane = lane < count ? levels[j + lane] : 0;
                Step now = step_of(__shfl_sync(ALL, of_lane, 0), first, shift);
#pragma unroll 4
                for (int s = 0; s < count; s++) {
                    const uint32_t slot = x & (SLOTS - 1);
                    const int symbol = lut[now.table * SLOTS + slot];
                    const Step next = step_of(__shfl_sync(ALL, of_lane, (s + 1) & 31), first, shift);
                    const uint32_t entry = table[now.table * SYMBOLS + symbol];
                    x = live ? (entry >> 16) * (x >> PRECISION) + slot - (entry & 0xffff) : x;
                    refill(w, x, live && x < LOWEST, lane);
                    int32_t value = symbol - HALF;
                    const bool low = live && now.low > 0, escape = live && symbol == ESCAPE;
                    if (__any_sync(ALL, low || escape)) {
                        uint32_t rest = 0;
                        if (low) rest = x & ((1u << now.low) - 1), x >>= now.low;
                        refill(w, x, low && x < LOWEST, lane);
                        if (escape) value = (int16_t)(x & 0xffff), x >>= 16;
                        refill(w, x, escape && x < LOWEST, lane);
                        value = value * (1 << now.low) + (int32_t)rest;
                        if (value != (int16_t)value) wrong |= live, value = 0;
                    }
                    if (!now.low) {
                        seen += MEAN_UNIT * min(value < 0 ? -value : value, (int)HALF);
                        expected += usual[now.plain];
                    }
                    a += (uint32_t)value;
                    b += a;
                    square[lane * ROW + s] = (int16_t)value;
                    now = next;
                }
                __syncwarp();
                int16_t *const to = q + ((int64_t)layer * tokens + start) * width + j;
                if (count == LANES && width % 8 == 0) { /* 16 bytes per thread, 4 threads per token */
                    for (int i = lane >> 2; i < LANES; i += 8) {
                        const uint32_t *const from = (const uint32_t *)(square + i * ROW) + (lane & 3) * 4;
                        uint4 *const there = (uint4 *)(to + (int64_t)i * width) + (lane & 3);
                        if (start + i < tokens) *there = make_uint4(from[0], from[1], from[2], from[3]);
                    }
                } else {
                    for (int i = 0; i < LANES; i++)
                        if (start + i < tokens && lane < count) to[(int64_t)i * width + lane] = square[i * ROW + lane];
                }
                __syncwarp();
            }
        }
        if (live && finishes) {
            uint32_t *const to = sums + 2 * ((int64_t)stream * tokens + token);
            to[0] = a, to[1] = b;
        }
    }
    wrong |= !used_up(w);
    if (finishes) wrong |= (int64_t)group * per_lane * LANES + lane < tokens && x != LOWEST;
    if (streams == 1) {
        mine[0] = x, mine[1] = (uint32_t)seen, mine[2] = (uint32_t)expected;
        mine[3] = kind, mine[4] = a, mine[5] = b;
    }
    if (wrong) *bad = 1;
}

/* ---- encode_streams */

DEV void put_tables(const uint32_t *entries, const uint16_t *mean) {
    uint32_t *const table = (uint32_t *)shared();
    int32_t *const usual = (int32_t *)(table + TABLES * SYMBOLS);
    for (int i = (int)threadIdx.x; i < TABLES * SYMBOLS; i += 32 * WARPS) table[i] = entries[i];
    for (int i = (int)threadIdx.x; i < TABLES; i += 32 * WARPS) usual[i] = mean[i];
    __syncthreads();
}

/* A warp takes 32 tokens through a stream, in the order of decoding. shifts: (layers, blocks of 32 components, tokens).
 * sums: as decode_streams. q: (layers, tokens, width). */
KERNEL(256) look_ahead(const int16_t *q, const uint8_t *classes, const uint32_t *entries, const uint16_t *mean,
                       const int16_t *level, int8_t *shifts, uint32_t *sums, int tokens, int layers, int width,
                       int point, int span, int streams) {
    put_tables(entries, mean);
    const int32_t *const usual = (const int32_t *)((uint32_t *)shared() + TABLES * SYMBOLS);
    const int64_t token = (int64_t)blockIdx.x * 32 * WARPS + threadIdx.x;
    if (token >= tokens) return;
    const int stream = (int)blockIdx.y, blocks = (width + LANES - 1) / LANES;
    const int last_layer = stream + 1 < streams ? (stream + 1) * span : layers;
    const int kind = classes[token], first = point + COARSEST - CLASS_LEVELS * kind;
    uint32_t a = stream ? 0 : (uint32_t)kind, b = 0;
    int32_t seen = 0, expected = 0;
    for (int layer = stream * span; layer < last_layer; layer++) {
        const int32_t above_seen = seen >> 1, above_expected = expected >> 1;
        const int16_t *const levels = level + (int64_t)layer * width;
        const int16_t *const mine = q + ((int64_t)layer * tokens + token) * width;
        seen = expected = 0;
        for (int block = 0; block < blocks; block++) {
            const int shift = shift_of(seen + above_seen, expected + above_expected);
            shifts[((int64_t)layer * blocks + block) * tokens + token] = (int8_t)shift;
            for (int j = block * LANES; j < min(width, (block + 1) * (int)LANES); j++) {
                const Step now = step_of(levels[j], first, shift);
                const int32_t value = mine[j];
                if (!now.low) {
                    seen += MEAN_UNIT * min(value < 0 ? -value : value, (int)HALF);
                    expected += usual[now.plain];
                }
                a += (uint32_t)value;
                b += a;
            }
        }
    }
    uint32_t *const to = sums + 2 * ((int64_t)stream * tokens + token);
    to[0] = a, to[1] = b;
}

/* Each lane whose state is full gives a word. Words lie in the order of lanes, before those that were given. */
DEV void give(uint16_t *words, int64_t &at, uint32_t &x, bool full, int lane) {
    const uint32_t mask = __ballot_sync(ALL, full);
    if (full) {
        if (words) words[at - 1 - __popc(mask & ~((2u << lane) - 1))] = (uint16_t)x;
        x >>= 16;
    }
    at -= __popc(mask);
}

/* A warp encodes a stream of a group, from its last step to its first. Without `words` it only sets counts, (sections,
 * groups): the words that each section takes. `ends` sums them up; then the words go there. shifts: of look_ahead.
 * states: (streams, groups, 32), which decoding begins with. */
KERNEL(256) encode_streams(const int16_t *q, const uint8_t *classes, const uint32_t *entries, const uint16_t *mean,
                           const int16_t *level, const int8_t *shifts, uint16_t *words, const int32_t *ends,
                           int32_t *counts, uint32_t *states, int groups, int tokens, int layers, int width, int point,
                           int per_lane, int span, int streams) {
    put_tables(entries, mean);
    const uint32_t *const table = (const uint32_t *)shared();
    const int lane = (int)(threadIdx.x & 31), group = (int)blockIdx.x * WARPS + (int)(threadIdx.x >> 5);
    if (group >= groups) return; /* the whole warp */
    const bool by_section = per_lane == 1;
    const int stream = (int)blockIdx.y, first_layer = stream * span, blocks = (width + LANES - 1) / LANES;
    const int last_layer = stream + 1 < streams ? first_layer + span : layers;
    int section = by_section ? (last_layer - 1) / SECTION : 0;
    int64_t at = words ? ends[(int64_t)section * groups + group] : 0;
    uint32_t x = LOWEST;
    for (int row = per_lane - 1; row >= 0; row--) {
        const int64_t start = ((int64_t)group * per_lane + row) * LANES, token = start + lane;
        if (start >= tokens) continue;
        const bool live = token < tokens;
        const int kind = live ? classes[token] : 0, first = point + COARSEST - CLASS_LEVELS * kind;
        for (int layer = last_layer - 1; layer >= first_layer; layer--) {
            const int16_t *const levels = level + (int64_t)layer * width;
            const int16_t *const mine = q + ((int64_t)layer * tokens + token) * width;
            if (by_section && layer / SECTION != section) {
                if (!words && lane == 0) counts[(int64_t)section * groups + group] = (int32_t)-at;
                section = layer / SECTION;
                at = words ? ends[(int64_t)section * groups + group] : 0;
            }
            for (int block = blocks - 1; block >= 0; block--) {
                const int shift = live ? shifts[((int64_t)layer * blocks + block) * tokens + token] : 0;
                for (int j = min(width, (block + 1) * (int)LANES) - 1; j >= block * LANES; j--) {
                    const Step now = step_of(levels[j], first, shift);
                    const int32_t value = live ? mine[j] : 0, high = value >> now.low;
                    const bool inside = high >= -HALF && high <= HALF;
                    uint32_t entry = table[now.table * SYMBOLS + (inside ? high + HALF : (int)ESCAPE)];
                    const bool escape = !inside || !(entry >> 16);
                    if (escape) entry = table[now.table * SYMBOLS + ESCAPE];
                    if (__any_sync(ALL, live && (escape || now.low))) {
                        give(words, at, x, live && escape, lane); /* a state is never too small for 16 bits more */
                        if (live && escape) x = x << 16 | (uint16_t)high;
                        const bool low = live && now.low > 0;
                        give(words, at, x, low && x >> (32 - now.low), lane);
                        if (low) x = x << now.low | ((uint32_t)value & ((1u << now.low) - 1));
                    }
                    const uint32_t f = entry >> 16;
                    give(words, at, x, live && x >> 20 >= f, lane);
                    if (live) x = (x / f << PRECISION) + x % f + (entry & 0xffff);
                }
            }
        }
        if (!stream) {
            give(words, at, x, live && x >> (32 - CLASS_BITS), lane);
            if (live) x = x << CLASS_BITS | (uint32_t)kind;
        }
    }
    if (!words && lane == 0) counts[(int64_t)section * groups + group] = (int32_t)-at;
    states[((int64_t)stream * groups + group) * LANES + lane] = x;
}

/* Set a flag where a factor of the next product is beyond its type, or no number. */
DEV void watch(int32_t *beyond, float v, int type) {
    if (type == F16 && !(v <= 65504.0f && v >= -65504.0f)) *beyond = 1;
}

/* ---- add_residual: out = predicted + constant + q x step, (tokens, width); a CTA per token */

KERNEL(256) add_residual(const float *predicted, const float *constant, const int16_t *q, const float *step, void *out,
                         int32_t *beyond, int width, int type) {
    const int64_t token = blockIdx.x, first = token * width;
    const float by = step[token];
    for (int j = (int)threadIdx.x; j < width; j += 256) {
        const float v = predicted[first + j] + constant[j] + (float)q[first + j] * by;
        watch(beyond, v, type);
        store(out, first + j, v, type);
    }
}

/* ---- place_layer: rows y (tokens, 2 heads dim) to kv (2, heads, tokens, dim), and to inputs of the next layer.
 *
 * Keys are turned by cos and sin, (tokens, half) each. inputs: (tokens, stride) of input_type. */

KERNEL(256) place_layer(const float *y, const float *cos, const float *sin, void *kv, void *inputs, int32_t *beyond,
                        int tokens, int heads, int dim, int half, int stride, int type, int input_type) {
    const int width = 2 * heads * dim;
    const int64_t token = blockIdx.x;
    const float *const mine = y + token * width;
    for (int j = (int)threadIdx.x; j < width; j += 256) {
        const int row = j / dim, d = j - row * dim; /* row: of keys, then of values */
        float v = mine[j];
        watch(beyond, v, input_type);
        store(inputs, token * stride + j, v, input_type);
        if (row < heads && d < 2 * half) {
            const bool left = d < half;
            const int pair = left ? d : d - half;
            const float c = cos[token * half + pair], s = sin[token * half + pair];
            v = left ? v * c - mine[j + half] * s : v * c + mine[j - half] * s;
        }
        store(kv, ((int64_t)row * tokens + token) * dim + d, v, type);
    }
}
