/* What every kernel of pltz begins with: integer types, names for declarations, and shared memory.
 *
 * emulate.h of the tests defines the same names on a CPU, and PLTZ_EMULATE. */
#ifndef PLTZ_EMULATE
#ifdef __CUDACC_RTC__ /* which has no headers */
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
#define DEV __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#define KERNEL2(threads) extern "C" __global__ void __launch_bounds__(threads, 2) /* two CTAs per multiprocessor */
#define KERNEL3(threads) extern "C" __global__ void __launch_bounds__(threads, 3)
#define KERNEL_OF(threads, ctas) extern "C" __global__ void __launch_bounds__(threads, ctas)
#define GRID_CONSTANT __grid_constant__
extern __shared__ __align__(128) uint8_t shared_memory[];
DEV uint8_t *shared() { return shared_memory; }
#endif
