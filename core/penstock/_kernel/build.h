/* What the kernel is built for, and from what: the part of every build, whatever else the kernel holds.
 *
 * The build hook (hatch_build.py) passes two digests. PENSTOCK_SOURCES is that of the sources: `penstock.kernel`
 * compares it with the sources beside it, or with the one noted in the wheel. PENSTOCK_BUILD is that of sources, flags
 * and versions of the tools: the hook finds it in an object's bytes, without loading it, and so knows whether to build.
 */
#ifndef PENSTOCK_BUILD_H
#define PENSTOCK_BUILD_H

#if !defined(PENSTOCK_SOURCES) || !defined(PENSTOCK_BUILD)
#error "the kernel is built by hatch_build.py: run `make kernel`"
#endif

#if !defined(__linux__)
#error "Penstock runs on Linux only"
#endif

/* Records are laid out by storing whole numbers; on a big-endian machine each would be written reversed. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Penstock runs on little-endian machines only"
#endif

/* Between reading the log's end and moving it, the interpreter's lock is the append lock. */
#if defined(Py_GIL_DISABLED)
#error "Penstock does not run on a Python without the interpreter's lock"
#endif

static const char penstock_build[] __attribute__((used)) = "penstock-kernel-build:" PENSTOCK_BUILD;

#endif
