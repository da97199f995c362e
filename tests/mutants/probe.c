/* Notes which parts of the kernel run: a byte for each basic block, at the place of the block in the object.
 *
 * The bytes are those of a file that all processes of a test map, so children count, also those that are killed.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
static uint8_t *hits;
static uintptr_t size;

__attribute__((constructor)) static void open_hits(void)
{
    const char *path = getenv("PENSTOCK_MUTANTS_BLOCKS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    off_t length = lseek(file, 0, SEEK_END);
    void *found = mmap(NULL, (size_t)length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        hits = found, size = (uintptr_t)length;
}

/* The compiler calls it where a block begins. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    uintptr_t place = (uintptr_t)__builtin_return_address(0) - (uintptr_t)__ehdr_start;
    if (place < size)
        hits[place] = 1;
}
