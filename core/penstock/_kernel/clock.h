/* The system's clocks. */
#pragma once
#include <stdint.h>
#include <time.h>

/* The wall-clock time in Unix milliseconds; it may jump either way. */
static inline int64_t clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000;
}

/* The monotonic clock in nanoseconds; it never goes back. */
static inline int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
