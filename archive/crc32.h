/* crc32, as zlib's: its state goes over eight bytes at a time by tables, and where the processor multiplies without carry over 64.
 *
 * Folding: 64 bytes stand for a polynomial, and so do they and all that follows. A block of 128 bits moved on by 512 is, modulo the polynomial of crc32, the
 * sum of two products of its halves and constants (powers of x), which is added to the block there: four blocks go over the whole stretch, and then
 * into one, which as 16 bytes has the same remainder as all of it. Gopal and others, "Fast CRC Computation Using PCLMULQDQ" (Intel, 2009). */

static uint32_t CRC[8][256]; /* of a byte with n zero bytes behind it; filled when the module is loaded */

static void fill_crc(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (state & 1 ? 0xEDB88320u : 0);
        CRC[0][byte] = state;
    }
    for (int n = 1; n < 8; n++)
        for (int byte = 0; byte < 256; byte++) CRC[n][byte] = CRC[n - 1][byte] >> 8 ^ CRC[0][CRC[n - 1][byte] & 0xFF];
}

static uint32_t crc_tables(uint32_t state, const uint8_t *at, size_t size)
{
    for (; size >= 8; at += 8, size -= 8) {
        const uint64_t word = load(at) ^ state;
        state = 0;
        for (int n = 0; n < 8; n++) state ^= CRC[7 - n][word >> 8 * n & 0xFF];
    }
    while (size--) state = state >> 8 ^ CRC[0][(state ^ *at++) & 0xFF];
    return state;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define FOLDING __attribute__((target("pclmul,sse4.1")))

FOLDING static inline __m128i folded(__m128i block, __m128i by, __m128i onto)
{
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(block, by, 0x00), _mm_clmulepi64_si128(block, by, 0x11)), onto);
}

FOLDING static inline __m128i block(const uint8_t *at)
{
    return _mm_loadu_si128((const __m128i *)at);
}

/* At least 64 bytes. */
FOLDING static uint32_t crc_folded(uint32_t state, const uint8_t *at, size_t size)
{
    const __m128i by_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0); /* bits, reflected */
    __m128i one = _mm_xor_si128(block(at), _mm_cvtsi32_si128((int)state)), two = block(at + 16), three = block(at + 32), four = block(at + 48);
    for (at += 64, size -= 64; size >= 64; at += 64, size -= 64) {
        one = folded(one, by_512, block(at));
        two = folded(two, by_512, block(at + 16));
        three = folded(three, by_512, block(at + 32));
        four = folded(four, by_512, block(at + 48));
    }
    one = folded(folded(folded(one, by_128, two), by_128, three), by_128, four);
    for (; size >= 16; at += 16, size -= 16) one = folded(one, by_128, block(at));
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, one);
    return crc_tables(crc_tables(0, rest, sizeof rest), at, size);
}

static int folds(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
#else
static uint32_t crc_folded(uint32_t state, const uint8_t *at, size_t size)
{
    return crc_tables(state, at, size);
}

static int folds(void)
{
    return 0;
}
#endif

/* As zlib.crc32: of bytes behind those that have the sum `seed`. */
static uint32_t crc32(uint32_t seed, const uint8_t *at, size_t size)
{
    return ~(size >= 64 && folds() ? crc_folded : crc_tables)(~seed, at, size);
}
