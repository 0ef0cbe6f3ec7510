/* Range coder: see coder.h. */
#include "coder.h"

#include <stdlib.h>
#include <string.h>

#include "engine.h"

int coder_put(Coder *c, uint32_t cumulative, uint32_t frequency) {
    const uint64_t scale = c->range >> 24, add = scale * cumulative;
    c->lower += add;
    if (c->lower < add) { /* carry; the first word cannot overflow, the code stays below 1 */
        for (size_t i = c->size; i-- > 0 && ++c->out[i] == 0;) {}
    }
    c->range = scale * frequency;
    if (c->range >> 32) return 0;
    if (c->size + 4 > c->room) {
        const size_t room = c->room ? c->room * 2 : 256;
        uint8_t *out = realloc(c->out, room);
        if (!out) return NO_MEMORY;
        c->out = out;
        c->room = room;
    }
    for (int i = 0; i < 4; i++) c->out[c->size++] = (uint8_t)(c->lower >> (56 - 8 * i));
    c->lower <<= 32;
    c->range <<= 32;
    return 0;
}

/* Write the first cut at which the next multiple, `value`, stays below lower + range. Only the last byte before the
 * state can be cut too (`total` - 9 bytes), as in RangeEncoder.finish. */
int coder_finish(Coder *c) {
    const size_t total = c->size + 8;
    uint8_t *all = malloc(total);
    if (!all) return NO_MEMORY;
    memcpy(all, c->out ? c->out : all, c->size);
    for (int i = 0; i < 8; i++) all[c->size + i] = (uint8_t)(c->lower >> (56 - 8 * i));
    size_t size = total - (c->size ? 9 : 8);
    for (; size <= total; size++) {
        const int cut = (int)(8 * (total - size)); /* bits, <= 72 */
        uint64_t up; /* value - lower, when it is below 2^64 */
        if (cut == 72) {
            const uint8_t before = all[c->size - 1];
            if (before == 0 && c->lower == 0) {
                up = 0;
            } else if (before == 0xff && c->lower != 0) {
                up = 0 - c->lower;
            } else {
                continue;
            }
        } else if (cut == 64) {
            up = 0 - c->lower; /* 0 when lower is 0 */
        } else if (cut) {
            up = (0 - c->lower) & ((UINT64_C(1) << cut) - 1);
        } else {
            up = 0;
        }
        if (up >= c->range) continue;
        for (size_t i = size; up && i-- > 0 && ++all[i] == 0;) {} /* round up; stays below 1 */
        break;
    }
    free(c->out);
    c->out = all;
    c->size = size;
    return 0;
}

uint32_t coder_word(Coder *c) {
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) {
        word = word << 8 | (c->place < c->length ? c->data[c->place] : 0);
        c->place++;
    }
    return word;
}

int32_t coder_peek(const Coder *c) {
    const uint64_t at = (c->point - c->lower) / (c->range >> 24);
    return at >> 24 ? DAMAGED : (int32_t)at;
}

int coder_is_spent(const Coder *c) { return c->place > 4 * ((c->length + 1) / 4) + 8; }

void coder_take(Coder *c, uint32_t cumulative, uint32_t frequency) {
    const uint64_t scale = c->range >> 24;
    c->lower += scale * cumulative;
    c->range = scale * frequency;
    if (c->range >> 32) return;
    c->lower <<= 32;
    c->range <<= 32;
    c->point = c->point << 32 | coder_word(c);
}
