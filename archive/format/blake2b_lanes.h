/* BLAKE2b (RFC 7693) of many messages at once, one in each lane of a vector.
 * Define TARGET, LANES and NAMED(name) first. Included once for each vector width. */

typedef uint64_t NAMED(Words) __attribute__((vector_size(8 * LANES)));

TARGET static inline NAMED(Words) NAMED(all)(uint64_t value)
{
    NAMED(Words) words = {0};
    for (int lane = 0; lane < LANES; lane++) words[lane] = value;
    return words;
}

/* Compress one block of each lane into `h`. `t`: bytes of the message up to the block's end; `last`: all bits set in
 * the last block. */
TARGET static void NAMED(compress)(NAMED(Words) h[8], const uint8_t *const block[LANES], NAMED(Words) t,
                                   NAMED(Words) last)
{
    NAMED(Words) m[16] = {{0}}, v[16];
    for (int w = 0; w < 16; w++)
        for (int lane = 0; lane < LANES; lane++)
            m[w][lane] = load(block[lane] + 8 * w);
    for (int i = 0; i < 8; i++) {
        v[i] = h[i];
        v[i + 8] = NAMED(all)(START[i]);
    }
    v[12] ^= t;
    v[14] ^= last;
#define ROTATED(x, n) ((x) >> (n) | (x) << (64 - (n)))
#define MIX(a, b, c, d, x, y) \
    v[a] += v[b] + m[x]; \
    v[d] = ROTATED(v[d] ^ v[a], 32); \
    v[c] += v[d]; \
    v[b] = ROTATED(v[b] ^ v[c], 24); \
    v[a] += v[b] + m[y]; \
    v[d] = ROTATED(v[d] ^ v[a], 16); \
    v[c] += v[d]; \
    v[b] = ROTATED(v[b] ^ v[c], 63);
#define ROUND(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    MIX(0, 4, 8, 12, a, b) \
    MIX(1, 5, 9, 13, c, d) \
    MIX(2, 6, 10, 14, e, f) \
    MIX(3, 7, 11, 15, g, h) \
    MIX(0, 5, 10, 15, i, j) \
    MIX(1, 6, 11, 12, k, l) \
    MIX(2, 7, 8, 13, m, n) \
    MIX(3, 4, 9, 14, o, p)
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
    ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4)
    ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8)
    ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13)
    ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9)
    ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11)
    ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10)
    ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5)
    ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0)
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
#undef ROUND
#undef MIX
#undef ROTATED
    for (int i = 0; i < 8; i++)
        h[i] ^= v[i] ^ v[i + 8];
}

/* Compute all digests. A lane that is done takes the next message, so unequal lengths cost little. */
TARGET static void NAMED(hash)(const Message *messages, size_t count, const uint64_t start[8], size_t size)
{
    NAMED(Words) h[8], t = {0}, last = {0};
    const Message *message[LANES] = {0};
    const uint8_t *block[LANES];
    uint8_t room[LANES][BLOCK] = {{0}};
    size_t at[LANES], begun = 0, done = 0;
    while (done < count) {
        for (int lane = 0; lane < LANES; lane++) {
            if (!message[lane] && begun < count) {
                message[lane] = messages + begun++;
                at[lane] = 0;
                for (int i = 0; i < 8; i++) h[i][lane] = start[i];
            }
            const Message *one = message[lane];
            block[lane] = one ? block_at(one, at[lane], room[lane]) : room[lane];
            if (!one) continue;
            const size_t whole = one->head_size + one->row_size, end = at[lane] + BLOCK;
            at[lane] = end;
            t[lane] = end < whole ? end : whole;
            last[lane] = end < whole ? 0 : ~(uint64_t)0;
        }
        NAMED(compress)(h, block, t, last);
        for (int lane = 0; lane < LANES; lane++) {
            if (!message[lane] || !last[lane]) continue;
            uint64_t digest[8];
            for (int i = 0; i < 8; i++) digest[i] = h[i][lane];
            memcpy(message[lane]->out, digest, size);
            message[lane] = NULL;
            done++;
        }
    }
}

#undef TARGET
#undef LANES
#undef NAMED
