/* The range coder of range_coder.py, both ways, in words of 32 bits. */
#ifndef PLTZ_CODER_H
#define PLTZ_CODER_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t lower, range, point; /* point: decoder only */
    uint8_t *out;                 /* encoder: whole words so far */
    size_t size, room;
    const uint8_t *data;          /* decoder; zeros follow the last byte */
    size_t length, place;
} Coder;

/* Add a symbol; return 0 or NO_MEMORY. */
int coder_put(Coder *c, uint32_t cumulative, uint32_t frequency);

/* Write the shortest bytes that, with zeros appended, decode to the symbols put; return 0 or NO_MEMORY. */
int coder_finish(Coder *c);

/* Return the next word of a stream; 0 past its end. */
uint32_t coder_word(Coder *c);

/* Return the place in 0 .. 2^24 - 1 at which the stream points, or DAMAGED. */
int32_t coder_peek(const Coder *c);

/* Return whether more words were taken than the encoder of a stream of so many bytes emitted (range_coder.most_words). */
int coder_is_spent(const Coder *c);

/* Take the symbol that was found there. */
void coder_take(Coder *c, uint32_t cumulative, uint32_t frequency);

#endif
