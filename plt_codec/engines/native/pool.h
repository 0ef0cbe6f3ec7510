/* Fork and join: `pool_for` runs numbered items on the calling thread and its helpers and returns when all are done.
 *
 * One atomic word holds (round, items, next item), so a helper that comes late can never take an item of another round.
 * The caller works too and waits only for items that a helper has already taken. Helpers spin, then yield; they live
 * for one call of pltz_run, so nothing survives a fork of the process or burns time between calls.
 */
#ifndef PLTZ_POOL_H
#define PLTZ_POOL_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#if defined(__x86_64__)
#define POOL_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define POOL_PAUSE() __asm__ volatile("yield")
#else
#define POOL_PAUSE() ((void)0)
#endif

enum { POOL_MAX = 64, POOL_SPIN = 4000, POOL_ITEMS = 1 << 24 };

typedef void (*PoolFn)(void *context, int item, int thread);

typedef struct Pool Pool;
typedef struct {
    Pool *pool;
    int number;
    pthread_t handle;
} PoolThread;

struct Pool {
    _Alignas(64) _Atomic uint64_t ticket; /* round << 48 | items << 24 | next */
    _Alignas(64) _Atomic int done;
    _Alignas(64) _Atomic int stop;
    PoolFn fn;
    void *context;
    int threads; /* the caller included */
    void (*begin)(void *context, int on);
    void *begin_context;
    PoolThread helpers[POOL_MAX];
};

static inline int pool_take(Pool *p, uint64_t seen) {
    const int items = (int)(seen >> 24 & (POOL_ITEMS - 1));
    if ((int)(seen & (POOL_ITEMS - 1)) >= items) return -1;
    const uint64_t got = atomic_fetch_add_explicit(&p->ticket, 1, memory_order_acq_rel);
    const int item = (int)(got & (POOL_ITEMS - 1));
    return item < (int)(got >> 24 & (POOL_ITEMS - 1)) ? item : -1;
}

static inline void *pool_help(void *argument) {
    const PoolThread *self = argument;
    Pool *p = self->pool;
    int idle = 0;
    if (p->begin) p->begin(p->begin_context, 1);
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        const int item = pool_take(p, atomic_load_explicit(&p->ticket, memory_order_acquire));
        if (item >= 0) {
            p->fn(p->context, item, self->number);
            atomic_fetch_add_explicit(&p->done, 1, memory_order_acq_rel);
            idle = 0;
        } else if (++idle < POOL_SPIN) {
            POOL_PAUSE();
        } else {
            sched_yield();
        }
    }
    if (p->begin) p->begin(p->begin_context, 0);
    return 0;
}

/* Start up to threads - 1 helpers; fewer if the system refuses. */
static inline void pool_start(Pool *p, int threads, void (*begin)(void *, int), void *begin_context) {
    atomic_init(&p->ticket, 0);
    atomic_init(&p->done, 0);
    atomic_init(&p->stop, 0);
    p->begin = begin;
    p->begin_context = begin_context;
    p->threads = 1;
    while (p->threads < threads && p->threads < POOL_MAX) {
        PoolThread *t = &p->helpers[p->threads];
        t->pool = p;
        t->number = p->threads;
        if (pthread_create(&t->handle, 0, pool_help, t)) break;
        p->threads++;
    }
    if (begin) begin(begin_context, 1);
}

static inline void pool_for(Pool *p, PoolFn fn, void *context, int items) {
    if (p->threads == 1 || items < 2) {
        for (int i = 0; i < items; i++) fn(context, i, 0);
        return;
    }
    p->fn = fn;
    p->context = context;
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    const uint64_t round = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 48) + 1;
    atomic_store_explicit(&p->ticket, round << 48 | (uint64_t)items << 24, memory_order_release);
    int mine = 0, spun = 0, item;
    while ((item = pool_take(p, atomic_load_explicit(&p->ticket, memory_order_acquire))) >= 0) {
        fn(context, item, 0);
        mine++;
    }
    while (atomic_load_explicit(&p->done, memory_order_acquire) + mine < items) {
        if (++spun < POOL_SPIN) {
            POOL_PAUSE();
        } else {
            sched_yield();
        }
    }
}

static inline void pool_stop(Pool *p) {
    atomic_store_explicit(&p->stop, 1, memory_order_release);
    for (int i = 1; i < p->threads; i++) pthread_join(p->helpers[i].handle, 0);
    if (p->begin) p->begin(p->begin_context, 0);
}

#endif
