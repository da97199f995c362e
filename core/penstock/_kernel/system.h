/* What the kernel asks of the system: waiting on a word of memory, and memory that a forked child finds empty. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Waits until the word is woken, at most so long, unless it is no longer what was seen. */
static inline void futex_wait(int32_t *word, int32_t seen, int64_t at_most_ns)
{
    struct timespec limit = {at_most_ns / 1000000000, at_most_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &limit, NULL, 0);
}

static inline void futex_wake(int32_t *word, int32_t most)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

/* A page whose first byte is 1 in this process, and 0 in a child, however it was forked. */
static inline uint8_t *page_of_this_process(void)
{
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return NULL;
    /* Where the system knows no such pages (before 4.14), what Python does at a fork is all there is. */
    (void)madvise(page, size, MADV_WIPEONFORK);
    page[0] = 1;
    return page;
}

static inline void give_page_back(uint8_t *page) { munmap(page, (size_t)sysconf(_SC_PAGESIZE)); }
