/* The blocks of a session and their memory for the next block: see session.h. */
#include "session.h"

#include <string.h>

#include "memory.h"

void session_block(Session *s, int64_t start) {
    const int64_t full = (int64_t)s->lanes * s->steps;
    const int64_t left = s->total - start;
    s->start = start;
    s->size = (int)(left < full ? left : full);
    s->L = s->lanes < s->size ? s->lanes : s->size;
    s->C = (s->size + s->L - 1) / s->L;
    s->full = s->size - s->L * (s->C - 1);
    for (int k = 0; k < s->L; k++) s->lane_start[k] = k * s->C - (k > s->full ? k - s->full : 0);
    s->step = 0;
}

/* Return the step from which on lane k is remembered by the next block. */
static int first_kept(const Model *m, const Session *s, int k) {
    const int at = s->size - m->memory - s->lane_start[k];
    return at < 0 ? 0 : at > s->C ? s->C : at;
}

static int count_kept(const Model *m, const Session *s) {
    int n = 0;
    for (int k = 0; k < s->L; k++) n += s->C - first_kept(m, s, k);
    return n;
}

int session_room(const Model *m, const Session *given) {
    Session s = *given;
    session_block(&s, s.first);
    const int grid = s.C * s.L;
    int room = s.first + grid;
    if (s.first + s.size < s.total) {
        const int kept = count_kept(m, &s);
        const int64_t full = s.size, last = s.first + (s.total - s.first - 1) / full * full;
        session_block(&s, last);
        const int later = kept + (s.C * s.L > grid ? s.C * s.L : grid);
        room = later > room ? later : room;
    }
    return round_up(room, KEY_PAD);
}

/* Slots only move down, so this works in place. */
void session_remember(const Model *m, Session *s) {
    for (int layer = 0; layer < m->layers; layer++) {
        for (int head = 0; head < m->kv_heads; head++) {
            uint8_t *keys = keys_of(m, s, layer, head);
            int8_t *values = values_of(m, s, layer, head);
            int to = 0;
            for (int step = 0; step < s->C; step++) {
                for (int k = 0; k < s->L; k++) {
                    if (step < first_kept(m, s, k)) continue;
                    const int from = s->old + step * s->L + k;
                    uint8_t *kt = key_at(m, keys, to), *kf = key_at(m, keys, from);
                    int8_t *vt = value_at(m, values, to), *vf = value_at(m, values, from);
                    for (int i = 0; i < m->dp / 4; i++) memmove(kt + i * 64, kf + i * 64, 4);
                    for (int i = 0; i < m->dv; i++) vt[i * 4] = vf[i * 4];
                    to++;
                }
            }
        }
    }
    s->old = count_kept(m, s);
}
