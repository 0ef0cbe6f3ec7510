/* Memory of the engine: see memory.h. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

void *grab(size_t bytes) {
    void *p = 0;
    const size_t huge = (size_t)1 << 21;
    const size_t align = bytes >= huge ? huge : 64;
    if (bytes > (size_t)1 << 40 || posix_memalign(&p, align, (bytes + 64 + align - 1) / align * align)) return 0;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (align == huge) madvise(p, bytes, MADV_HUGEPAGE); /* fewer TLB misses while the weights are read */
#endif
    memset(p, 0, bytes + 64);
    return p;
}
