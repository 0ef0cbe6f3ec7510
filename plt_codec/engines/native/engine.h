/* The functions that coder.py calls, and the errors they return. */
#ifndef PLTZ_ENGINE_H
#define PLTZ_ENGINE_H

#define EXPORT __attribute__((visibility("default")))

enum { NO_MEMORY = -1, DAMAGED = -2, SPENT = -3 };

#endif
