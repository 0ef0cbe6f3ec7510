/* The kernel for processors with AVX-512 VNNI. */
#include "kernel.h"

#if defined(PLTZ_X86)
#if defined(__clang__)
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")))
#endif
#define SIGNED_KEYS 0
#include "avx512.h"

#define scores vnni_scores
#define mix vnni_mix
#include "kernel_body.h"

static int supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

const Kernel pltz_vnni = {"vnni", supported, 0, 0, multiply, norm, turn, attend, gained, turn_only, gate, 0, 0};
#endif
