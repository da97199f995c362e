/* CRC-32 as in zlib (polynomial 0xEDB88320, reflected): the checksum of bodies and of whole records. And CRC-32C
   (0x82F63B78), that of frames: short ones by the processor's instructions if it has them, otherwise with tables.

   If the processor has carry-less multiplication (x86-64), 64 or 256 bytes are folded a step: a block that is d bits
   before another is multiplied by x^d modulo the polynomial and added to it. The remaining bytes, 16 or fewer, are
   processed with tables. On aarch64, the processor's CRC instructions are used. The module chooses when it loads.

   No state, no locks, no Python: callable without the GIL. Only [p, p + n) is read. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC_POLYNOMIAL 0xEDB88320u
#define CRC32C_POLYNOMIAL 0x82F63B78u

static uint32_t crc_tables[8][256], crc32c_tables[8][256];
static int crc32c_has_instructions;

static void crc_make_tables(uint32_t (*tables)[256], uint32_t polynomial)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? polynomial ^ (value >> 1) : value >> 1;
        tables[0][byte] = value;
    }
    for (int table = 1; table < 8; table++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables[table - 1][byte];
            tables[table][byte] = tables[0][before & 255] ^ (before >> 8);
        }
}

/* `state` is the inverted CRC so far; so is the result. */
static uint32_t crc_by(uint32_t (*tables)[256], uint32_t state, const uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        v ^= state;
        state = 0;
        for (int byte = 0; byte < 8; byte++)
            state ^= tables[7 - byte][(v >> (8 * byte)) & 255];
    }
    while (n--)
        state = tables[0][(state ^ *p++) & 255] ^ (state >> 8);
    return state;
}

static uint32_t crc_by_tables(uint32_t state, const uint8_t *p, size_t n) { return crc_by(crc_tables, state, p, n); }

/* Defines a function like `crc_by_tables`, of the instructions for 8 bytes and for one. */
#define CRC_BY_INSTRUCTIONS(name, features, by_eight, by_one) \
    __attribute__((target(features))) static uint32_t name(uint32_t state, const uint8_t *p, size_t n) \
    { \
        for (; n >= 8; p += 8, n -= 8) { \
            uint64_t v; \
            memcpy(&v, p, 8); \
            state = (uint32_t)by_eight(state, v); \
        } \
        while (n--) \
            state = by_one(state, *p++); \
        return state; \
    }

#if defined(__x86_64__)
#include <immintrin.h>

/* Newer versions of clang have a feature of its own for these instructions. */
#if defined(__clang__) && __clang_major__ >= 14
#define CRC32C_FEATURES "sse4.2,crc32"
#else
#define CRC32C_FEATURES "sse4.2"
#endif
CRC_BY_INSTRUCTIONS(crc32c_by_instructions, CRC32C_FEATURES, _mm_crc32_u64, _mm_crc32_u8)

/* The factors by which the two halves of 16 bytes are multiplied to advance them by `bits`. */
typedef struct { uint64_t first, second; } CrcFold;

typedef struct { uint32_t (*tables)[256]; CrcFold by_16, by_64, by_256; } CrcFolds;

static CrcFolds crc32_folds, crc32c_folds;
static int crc_folds, crc_folds_wide;

/* x to the power `n`, reflected; the product of two reflected numbers is one bit too low, so the factor is shifted. */
static uint64_t crc_power(uint32_t polynomial, int n)
{
    uint32_t value = 0x80000000u;
    while (n--)
        value = value & 1 ? polynomial ^ (value >> 1) : value >> 1;
    return (uint64_t)value << 1;
}

static CrcFold crc_fold_of(uint32_t polynomial, int bits)
{
    CrcFold fold = {crc_power(polynomial, bits + 32), crc_power(polynomial, bits - 32)};
    return fold;
}

static CrcFolds crc_folds_of(uint32_t polynomial, uint32_t (*tables)[256])
{
    CrcFolds folds = {
        tables, crc_fold_of(polynomial, 128), crc_fold_of(polynomial, 512), crc_fold_of(polynomial, 2048)
    };
    return folds;
}

#define CRC_LANES(fold) _mm_set_epi64x((long long)(fold).second, (long long)(fold).first)
#define CRC_FOLD(x, by, next) \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next)
#define CRC_LOAD(at) _mm_loadu_si128((const __m128i *)(at))

/* Folds 256 bytes a step, in four registers of 64; leaves 64 bytes in `cursors`. Needs at least 256 bytes. */
__attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))
static size_t crc_fold_wide(const CrcFolds *f, uint32_t state, const uint8_t *p, size_t n, __m128i *cursors)
{
    const __m512i far = _mm512_broadcast_i32x4(CRC_LANES(f->by_256));
    const __m512i near = _mm512_broadcast_i32x4(CRC_LANES(f->by_64));
    const uint8_t *start = p;
    __m512i x[4];
    for (int k = 0; k < 4; k++)
        x[k] = _mm512_loadu_si512((const void *)(p + 64 * k));
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
#define CRC_FOLD_WIDE(a, by, next) _mm512_ternarylogic_epi64( \
        _mm512_clmulepi64_epi128(a, by, 0x00), _mm512_clmulepi64_epi128(a, by, 0x11), next, 0x96)
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256)
        for (int k = 0; k < 4; k++)
            x[k] = CRC_FOLD_WIDE(x[k], far, _mm512_loadu_si512((const void *)(p + 64 * k)));
    for (int k = 1; k < 4; k++)
        x[0] = CRC_FOLD_WIDE(x[0], near, x[k]);
#undef CRC_FOLD_WIDE
    _mm512_storeu_si512((void *)cursors, x[0]);
    return (size_t)(p - start);
}

/* Shuffle masks: sixteen entries from index n on move bytes up by 16 - n places, from index 16 + n on down by n; the
   other places become zero. */
static const uint8_t crc_moves[48] = {
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
};

/* Needs at least 64 bytes. */
__attribute__((target("pclmul,sse4.1")))
static uint32_t crc_by_folding(const CrcFolds *f, uint32_t state, const uint8_t *p, size_t n)
{
    const __m128i far = CRC_LANES(f->by_64), near = CRC_LANES(f->by_16);
    __m128i x[4];
    uint8_t rest[16];
    size_t done = 64;
    if (n >= 256 && crc_folds_wide) {
        done = crc_fold_wide(f, state, p, n, x);
    } else {
        for (int k = 0; k < 4; k++)
            x[k] = CRC_LOAD(p + 16 * k);
        x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)state));
    }
    for (p += done, n -= done; n >= 64; p += 64, n -= 64)
        for (int k = 0; k < 4; k++)
            x[k] = CRC_FOLD(x[k], far, CRC_LOAD(p + 16 * k));
    for (int k = 1; k < 4; k++)
        x[0] = CRC_FOLD(x[0], near, x[k]);
    for (; n >= 16; p += 16, n -= 16)
        x[0] = CRC_FOLD(x[0], near, CRC_LOAD(p));
    if (n) {
        /* The folded bytes and the n remaining ones are 16 + n bytes: the first n of them, after zeros, are folded into
           the last 16. There are at least 16 bytes before the end, so 16 may be loaded. */
        const __m128i over = CRC_LOAD(crc_moves + 16 + n);
        const __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(x[0], over), CRC_LOAD(p + n - 16), over);
        x[0] = CRC_FOLD(_mm_shuffle_epi8(x[0], CRC_LOAD(crc_moves + n)), near, last);
    }
    /* These sixteen bytes have the same remainder as the whole input. */
    _mm_storeu_si128((__m128i *)rest, x[0]);
    return crc_by(f->tables, 0, rest, 16);
}

static void crc_choose(void)
{
    crc32_folds = crc_folds_of(CRC_POLYNOMIAL, crc_tables);
    crc32c_folds = crc_folds_of(CRC32C_POLYNOMIAL, crc32c_tables);
    __builtin_cpu_init();
    crc32c_has_instructions = __builtin_cpu_supports("sse4.2");
    crc_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    crc_folds_wide = crc_folds && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

static inline uint32_t crc_state(uint32_t state, const uint8_t *p, size_t n)
{
    return n >= 64 && crc_folds ? crc_by_folding(&crc32_folds, state, p, n) : crc_by_tables(state, p, n);
}

/* For fewer bytes, the instructions are as fast. */
static inline uint32_t crc32c_state(uint32_t state, const uint8_t *p, size_t n)
{
    if (n >= 1024 && crc_folds)
        return crc_by_folding(&crc32c_folds, state, p, n);
    return crc32c_has_instructions ? crc32c_by_instructions(state, p, n) : crc_by(crc32c_tables, state, p, n);
}

#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>

#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
static int crc_has_instructions;

CRC_BY_INSTRUCTIONS(crc_by_instructions, "+crc", __crc32d, __crc32b)
CRC_BY_INSTRUCTIONS(crc32c_by_instructions, "+crc", __crc32cd, __crc32cb)

static void crc_choose(void)
{
    crc32c_has_instructions = crc_has_instructions = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

static inline uint32_t crc_state(uint32_t state, const uint8_t *p, size_t n)
{
    return crc_has_instructions ? crc_by_instructions(state, p, n) : crc_by_tables(state, p, n);
}

static inline uint32_t crc32c_state(uint32_t state, const uint8_t *p, size_t n)
{
    return crc32c_has_instructions ? crc32c_by_instructions(state, p, n) : crc_by(crc32c_tables, state, p, n);
}

#else
static void crc_choose(void) {}
static inline uint32_t crc_state(uint32_t state, const uint8_t *p, size_t n) { return crc_by_tables(state, p, n); }
static inline uint32_t crc32c_state(uint32_t state, const uint8_t *p, size_t n)
{
    return crc_by(crc32c_tables, state, p, n);
}
#endif

/* Must be called once, before any other function of this file. */
static void crc_start(void)
{
    crc_make_tables(crc_tables, CRC_POLYNOMIAL);
    crc_make_tables(crc32c_tables, CRC32C_POLYNOMIAL);
    crc_choose();
}

/* Returns the CRC of bytes that continue others whose CRC is `crc`; pass 0 to begin. */
static inline uint32_t crc32_more(uint32_t crc, const uint8_t *p, size_t n) { return ~crc_state(~crc, p, n); }

/* The same for CRC-32C. */
static inline uint32_t crc32c_more(uint32_t crc, const uint8_t *p, size_t n)
{
    return ~crc32c_state(~crc, p, n);
}
