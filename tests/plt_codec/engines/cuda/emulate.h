/* Runs the kernels on a CPU, for tests without a GPU: each thread of a block is a fiber, blocks run one after the
 * other, the blocks of a cluster together. Slow and plain; it knows only what the kernels use, and expects whole warps
 * in collectives. x86-64 and GNU C++ only.
 */
#define PLTZ_EMULATE
#include <emmintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <vector>

using std::max;
using std::min;

#define DEV inline
#define KERNEL(threads) static void
#define KERNEL2(threads) static void
#define KERNEL3(threads) static void
#define KERNEL_OF(threads, ctas) static void
#define GRID_CONSTANT
#define __restrict__
#define __noinline__
/* aligned as a GPU demands it, so that a sanitizer sees where an address is not */
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(16) int4 {
    int32_t x, y, z, w;
};
struct alignas(8) int2 {
    int32_t x, y;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct Dim {
    unsigned x, y, z;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline int2 make_int2(int32_t x, int32_t y) { return {x, y}; }
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }

/* ---- fibers */
extern "C" void fiber_switch(void **from, void *to);
asm(".text\n.globl fiber_switch\n.type fiber_switch,@function\nfiber_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size fiber_switch,.-fiber_switch\n");

struct Fiber;
struct Meeting {
    unsigned here = 0, round = 0;
    Fiber *waiting = nullptr;
};
struct Warp {
    Meeting meeting;
    uint32_t slot[2][32][8];
};
struct Cta {
    Meeting meeting;
    std::vector<uint8_t> memory;
    std::vector<Warp> warps;
    Dim index;
};
struct Fiber {
    void *sp;
    Cta *cta;
    Dim thread;
    unsigned turns, round;
    Fiber *before, *next; /* the ring of those that can run */
    Fiber *beside;        /* waits at the same meeting */
};
static struct Run {
    std::vector<Fiber> fibers;
    std::vector<Cta> ctas;
    Fiber *now;
    size_t left; /* fibers that are not over */
    unsigned long idle; /* switches since a meeting was complete */
    void *home;
    Dim grid, block;
    unsigned cluster;
    std::vector<Meeting> meetings; /* of the clusters */
    std::function<void()> body;
} run;

#define threadIdx (run.now->thread)
#define blockIdx (run.now->cta->index)
#define blockDim (run.block)
#define gridDim (run.grid)
static inline uint8_t *shared() { return run.now->cta->memory.data(); }

[[noreturn]] static void stuck() {
    fprintf(stderr, "emulate: threads wait for ever (block %u thread %u)\n", blockIdx.x, threadIdx.x);
    abort();
}
static void fiber_next() { /* to the next that can run, if there is another */
    Fiber *const from = run.now;
    if (++run.idle > 2000000000ul) stuck();
    if (from->next == from) return;
    run.now = from->next;
    fiber_switch(&from->sp, run.now->sp);
}
static void fiber_leave() { /* the ring, and go on with the next */
    Fiber *const from = run.now;
    if (from->next == from) stuck();
    from->before->next = from->next;
    from->next->before = from->before;
    run.now = from->next;
    fiber_switch(&from->sp, run.now->sp);
}
static void fiber_main() {
    run.body();
    run.idle = 0;
    if (--run.left) fiber_leave();
    fiber_switch(&run.now->sp, run.home);
    abort();
}
static void wait_at(Meeting &m) {
    run.now->beside = m.waiting;
    m.waiting = run.now;
    fiber_leave();
}
static void complete(Meeting &m) { /* those that wait run next, in the order in which they came */
    run.idle = 0;
    m.here = 0;
    m.round++;
    for (Fiber *f = m.waiting; f; f = f->beside) {
        f->before = run.now;
        f->next = run.now->next;
        f->next->before = f;
        run.now->next = f;
    }
    m.waiting = nullptr;
}
static void meet(Meeting &m, unsigned all) {
    if (++m.here == all)
        complete(m);
    else
        wait_at(m);
}
static inline void __syncthreads() { meet(run.now->cta->meeting, run.block.x); }
static inline Warp &my_warp() { return run.now->cta->warps[threadIdx.x / 32]; }
static inline void __syncwarp() { meet(my_warp().meeting, 32); }
template <int N> static uint32_t (*exchange(const uint32_t *mine))[8] { /* all lanes give N words; their table */
    Warp &w = my_warp();
    uint32_t (*table)[8] = w.slot[run.now->turns++ & 1];
    memcpy(table[threadIdx.x & 31], mine, N * 4);
    meet(w.meeting, 32);
    return table;
}
template <class T> static T fetch(T v, unsigned from) {
    uint32_t words[2] = {0, 0};
    memcpy(words, &v, sizeof v);
    uint32_t (*table)[8] = exchange<2>(words);
    memcpy(&v, table[from & 31], sizeof v);
    return v;
}
template <class T> static T __shfl_sync(uint32_t, T v, int from) { return fetch(v, (unsigned)from); }
template <class T> static T __shfl_xor_sync(uint32_t, T v, int x) { return fetch(v, (threadIdx.x & 31) ^ (unsigned)x); }
template <class T> static T __shfl_up_sync(uint32_t, T v, int n) {
    const unsigned lane = threadIdx.x & 31;
    return fetch(v, lane >= (unsigned)n ? lane - (unsigned)n : lane);
}
static inline uint32_t __ballot_sync(uint32_t, bool p) {
    const uint32_t mine = p;
    uint32_t (*table)[8] = exchange<1>(&mine);
    uint32_t out = 0;
    for (int i = 0; i < 32; i++) out |= table[i][0] << i;
    return out;
}
static inline bool __any_sync(uint32_t mask, bool p) { return __ballot_sync(mask, p) != 0; }
static inline uint32_t __reduce_add_sync(uint32_t, uint32_t v) {
    uint32_t (*table)[8] = exchange<1>(&v);
    uint32_t out = 0;
    for (int i = 0; i < 32; i++) out += table[i][0];
    return out;
}
static inline int32_t __reduce_max_sync(uint32_t, int32_t v) {
    uint32_t (*table)[8] = exchange<1>((const uint32_t *)&v);
    int32_t out = v;
    for (int i = 0; i < 32; i++) out = max(out, (int32_t)table[i][0]);
    return out;
}
static inline double near_inverse_root(double v) { return (float)(1.0 / sqrt(v)); }
static inline double near_inverse(double v) { return (float)(1.0 / v); }
static inline float near_inverse(float v) { return 1.0f / v; }
static inline double whole(double v) { return floor(v); }
static inline void forget(double &, double &) {}
static inline uint32_t shift_right(uint32_t v, uint32_t n) { return n < 32 ? v >> n : 0; }
static inline uint64_t multiply(uint32_t a, uint32_t b) { return (uint64_t)a * b; }
static inline int32_t low_word(double v) {
    int64_t w;
    memcpy(&w, &v, 8);
    return (int32_t)w;
}
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __popc(uint32_t v) { return __builtin_popcount(v); }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t s) {
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) out |= (uint32_t)(all >> (8 * (s >> (4 * i) & 7)) & 255) << (8 * i);
    return out;
}
template <class T, class U> static T atomicAdd(T *p, U v) {
    const T old = *p;
    *p = old + (T)v;
    return old;
}
template <class T> static T atomicMax(T *p, T v) {
    const T old = *p;
    *p = max(old, v);
    return old;
}
template <class T> static T atomicMin(T *p, T v) {
    const T old = *p;
    *p = min(old, v);
    return old;
}
template <class T> static T atomicCAS(T *p, T was, T v) {
    const T old = *p;
    if (old == was) *p = v;
    return old;
}
template <bool SIGNED> static __m128i halves(__m128i v, bool high) { /* 8 of 16 bytes, as 16 bits each */
    const __m128i zero = _mm_setzero_si128(), above = SIGNED ? _mm_cmplt_epi8(v, zero) : zero;
    return high ? _mm_unpackhi_epi8(v, above) : _mm_unpacklo_epi8(v, above);
}
template <bool SIGNED> static int32_t dot32(const void *a, const void *b) { /* 32 bytes, the right ones signed */
    __m128i sum = _mm_setzero_si128();
    for (int i = 0; i < 4; i++) {
        const __m128i x = _mm_loadu_si128((const __m128i *)a + i / 2), y = _mm_loadu_si128((const __m128i *)b + i / 2);
        sum = _mm_add_epi32(sum, _mm_madd_epi16(halves<SIGNED>(x, i & 1), halves<true>(y, i & 1)));
    }
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}
/* Row `row` of the left side of a product, of the words that the lanes of a warp hold. */
static inline void left_row(uint32_t *to, const uint32_t (*table)[8], int row) {
    for (int word = 0; word < 8; word++) to[word] = table[(row & 7) * 4 + (word & 3)][(row >> 3) + (word >> 2) * 2];
}
template <bool SIGNED> static void mma(int32_t *c, const uint32_t a[4], uint32_t b0, uint32_t b1) {
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    uint32_t (*table)[8] = exchange<6>(mine);
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
    uint32_t left[2][8], right[2][8];
    for (int i = 0; i < 2; i++) {
        left_row(left[i], table, g + i * 8);
        for (int word = 0; word < 8; word++) right[i][word] = table[(t * 2 + i) * 4 + (word & 3)][4 + (word >> 2)];
    }
    for (int i = 0; i < 4; i++) c[i] += dot32<SIGNED>(left[i >> 1], right[i & 1]);
}
static inline void mma_s8(int32_t *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t a[4] = {a0, a1, a2, a3};
    mma<true>(c, a, b0, b1);
}
static inline void mma_u8(int32_t *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t a[4] = {a0, a1, a2, a3};
    mma<false>(c, a, b0, b1);
}
static inline int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
    for (int i = 0; i < 4; i++) c += (int32_t)(int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
static inline void copy16(void *to, const void *from) { memcpy(to, from, 16); }
static inline void copies_commit() {}
template <int N> static inline void copies_wait() {}

static inline size_t my_cta() { return (size_t)(run.now->cta - run.ctas.data()); }
static inline int cluster_rank() { return (int)(my_cta() % run.cluster); }
static inline Meeting &cluster_meeting() { return run.meetings[my_cta() / run.cluster]; }
static inline void cluster_arrive() {
    Meeting &m = cluster_meeting();
    run.now->round = m.round;
    if (++m.here == run.block.x * run.cluster) complete(m);
}
static inline void cluster_wait() {
    if (cluster_meeting().round == run.now->round) wait_at(cluster_meeting());
}
struct Meeting2 {
    uint32_t came[2], expected[2], rounds[2];
};
static inline Meeting2 &meeting_of(Cta &cta, const void *m) {
    return *(Meeting2 *)(cta.memory.data() + ((const uint8_t *)m - shared()));
}
static inline void meeting_open(uint64_t *m) { memset(m, 0, sizeof(Meeting2)); }
static inline void meeting_expect(uint64_t *m, uint32_t round, uint32_t bytes) {
    Meeting2 &e = *(Meeting2 *)m;
    e.expected[round & 1] += bytes;
    e.rounds[round & 1]++;
}
static inline void meeting_wait(uint64_t *m, uint32_t round) {
    Meeting2 &e = *(Meeting2 *)m;
    while (e.rounds[round & 1] <= round >> 1 || e.came[round & 1] < e.expected[round & 1]) fiber_next();
}
static inline uint64_t peer(const void *p, int rank) {
    return (uint64_t)(run.ctas[my_cta() / run.cluster * run.cluster + rank].memory.data() +
                      ((const uint8_t *)p - shared()));
}
static inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *m, uint32_t round) {
    memcpy(to, from, bytes);
    ((Meeting2 *)m)->came[round & 1] += bytes;
}
/* `meeting` is the peer's address of a word of 8 bytes: the place of an even round, or 8 behind it */
static void sent(uint64_t meeting, uint32_t bytes) {
    for (Cta &c : run.ctas) {
        const uint64_t first = (uint64_t)c.memory.data();
        if (meeting < first || meeting >= first + c.memory.size()) continue;
        const int odd = (meeting - first) % 32 >= 8; /* meeting points lie at multiples of 32 */
        ((Meeting2 *)(meeting - odd * 8))->came[odd] += bytes;
    }
}
static inline void send16(uint64_t to, uint4 v, uint64_t meeting) {
    memcpy((void *)to, &v, 16);
    sent(meeting, 16);
}
static inline void send8(uint64_t to, uint2 v, uint64_t meeting) {
    memcpy((void *)to, &v, 8);
    sent(meeting, 8);
}
static inline void send_sum(uint64_t to, int32_t v, uint64_t meeting) {
    *(int32_t *)to += v;
    sent(meeting, 4);
}
static inline void send_least(uint64_t to, int32_t v, uint64_t meeting) {
    *(int32_t *)to = min(*(int32_t *)to, v);
    sent(meeting, 4);
}

static inline uint32_t wire_load(const uint32_t *from) { return *(const volatile uint32_t *)from; }
static inline uint2 wire_load2(const uint32_t *from) { return {wire_load(from), wire_load(from + 1)}; }
static inline void wire_store(uint32_t *to, uint32_t v) { *(volatile uint32_t *)to = v; }
static inline void post(uint32_t *to, uint32_t v) { *(volatile uint32_t *)to = v; }
static inline void look_again() {}
static inline void put4(uint64_t to, uint32_t v) { *(uint32_t *)to = v; }
static inline void put16(uint64_t to, uint4 v) { memcpy((void *)to, &v, 16); }
static inline bool breathe() {
    fiber_next();
    return true;
}

/* ---- launches; together: blocks that run side by side, whole clusters */
static void launch(const uint32_t *grid, unsigned threads, unsigned cluster, unsigned together, size_t bytes,
                   const std::function<void()> &body) {
    static const size_t STACK = 1 << 16;
    static std::vector<uint8_t *> stacks;
    const size_t fibers = (size_t)threads * together;
    while (stacks.size() < fibers) stacks.push_back((uint8_t *)aligned_alloc(64, STACK));
    run.grid = {grid[0], grid[1], grid[2]};
    run.block = {threads, 1, 1};
    run.cluster = cluster;
    run.body = body;
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x += together) {
                run.ctas.assign(together, Cta());
                run.fibers.assign(fibers, Fiber());
                run.meetings.assign(together / cluster, Meeting());
                for (unsigned c = 0; c < together; c++) {
                    Cta &cta = run.ctas[c];
                    cta.memory.assign(bytes + 128, 0xa5);
                    cta.warps.resize(threads / 32);
                    cta.index = {x + c, y, z};
                }
                for (size_t i = 0; i < fibers; i++) {
                    Fiber &f = run.fibers[i];
                    f.cta = &run.ctas[i / threads];
                    f.thread = {(unsigned)(i % threads), 0, 0};
                    void **sp = (void **)(stacks[i] + STACK - 64);
                    *--sp = 0; /* the stack as a call leaves it */
                    *--sp = (void *)fiber_main;
                    sp -= 6;
                    f.sp = sp;
                    f.next = &run.fibers[(i + 1) % fibers];
                    f.next->before = &f;
                }
                run.now = run.fibers.data();
                run.left = fibers;
                fiber_switch(&run.home, run.now->sp);
            }
}
template <size_t... I, class... A> static void invoke(void (*f)(A...), void **args, std::index_sequence<I...>) {
    f(*(std::remove_reference_t<A> *)args[I]...);
}
template <class... A> static void call(void (*f)(A...), void **args) {
    invoke(f, args, std::index_sequence_for<A...>());
}
#define EMULATED(name)                                                              \
    if (!strcmp(kernel, #name)) {                                                   \
        launch(grid, threads, cluster, together, bytes, [&] { call(name, args); }); \
        return 0;                                                                   \
    }
