/* The platform that the kernel is built for, and the digests of its sources; part of every build.
 *
 * The build hook (hatch_build.py) passes two digests. PENSTOCK_SOURCES is the digest of the sources: `penstock.kernel`
 * compares it with the sources beside it, or with the digest in the wheel. PENSTOCK_BUILD is the digest of sources,
 * flags and tool versions: the hook searches an object's bytes for it, without loading it, to decide whether to build.
 */
#ifndef PENSTOCK_BUILD_H
#define PENSTOCK_BUILD_H

#if !defined(PENSTOCK_SOURCES) || !defined(PENSTOCK_BUILD)
#error "the kernel is built by hatch_build.py: run `make kernel`"
#endif

#if !defined(__linux__)
#error "Penstock runs on Linux only"
#endif

/* Records are written by storing integers; on a big-endian machine their bytes would be reversed. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Penstock runs on little-endian machines only"
#endif

/* Between reading the log's end and advancing it, the GIL serves as the append lock. */
#if defined(Py_GIL_DISABLED)
#error "Penstock does not run on a free-threaded Python: it needs the GIL"
#endif

static const char penstock_build[] __attribute__((used)) = "penstock-kernel-build:" PENSTOCK_BUILD;

#endif
