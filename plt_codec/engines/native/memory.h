/* Memory of the engine. */
#ifndef PLTZ_MEMORY_H
#define PLTZ_MEMORY_H

#include <stddef.h>

/* Return zeroed memory on a line or a huge page of its own; NULL: there is none. It is a little longer than asked
 * for, as kernels read past ends. */
void *grab(size_t bytes);

static inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

#endif
