/* Texts within records: properties, keys, and Java's hash of a string. Nothing outside of a span is read. */
#pragma once
#include "record.h"

enum { NAME_END = 1, PAIR_END = 2 };

/* Finds the next pair of a properties text that has a name and a value; returns 0 at the end. `*at` moves past it. */
static inline int pair_next(const uint8_t **at, const uint8_t *end, Span *name, Span *value)
{
    while (*at < end) {
        const uint8_t *start = *at, *middle;
        const uint8_t *stop = memchr(start, PAIR_END, (size_t)(end - start));
        if (!stop)
            stop = end;
        *at = stop < end ? stop + 1 : end;
        middle = memchr(start, NAME_END, (size_t)(stop - start));
        if (middle && middle > start && middle + 1 < stop) {
            name->p = start, name->n = middle - start;
            value->p = middle + 1, value->n = stop - middle - 1;
            return 1;
        }
    }
    return 0;
}

static inline int is_same(Span a, Span b) { return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, (size_t)a.n) == 0); }

/* Returns the value of a property; n = 0 if there is none. If a name occurs twice the last value counts, as in Java.
   `wanted` must not be empty or contain NAME_END: so it suffices to compare a pair's name up to its first NAME_END. */
static inline Span property(Span text, Span wanted)
{
    Span found = {text.p, 0};
    const uint8_t *at = text.p, *end = text.p + text.n, *stop;
    for (; at < end; at = stop < end ? stop + 1 : end) {
        stop = memchr(at, PAIR_END, (size_t)(end - at));
        if (!stop)
            stop = end;
        if (stop - at > wanted.n + 1 && at[wanted.n] == NAME_END && memcmp(at, wanted.p, (size_t)wanted.n) == 0)
            found.p = at + wanted.n + 1, found.n = stop - found.p;
    }
    return found;
}

/* Returns the values that dispatchers index, n = 0 if there is none: the same as by `property`, but in one scan. */
typedef struct {
    Span tag, keys, unique;
} Indexed;

static inline int begins_with(const uint8_t *p, const char *name, size_t n) { return memcmp(p, name, n) == 0; }

static inline Indexed indexed_values(Span text)
{
    Indexed found = {{text.p, 0}, {text.p, 0}, {text.p, 0}};
    const uint8_t *at = text.p, *end = text.p + text.n, *stop;
    for (; at < end; at = stop < end ? stop + 1 : end) {
        stop = memchr(at, PAIR_END, (size_t)(end - at));
        if (!stop)
            stop = end;
        if (stop - at > 5 && at[4] == NAME_END) {
            if (begins_with(at, "TAGS", 4))
                found.tag = (Span){at + 5, stop - at - 5};
            else if (begins_with(at, "KEYS", 4))
                found.keys = (Span){at + 5, stop - at - 5};
        }
        else if (stop - at > 9 && at[8] == NAME_END && begins_with(at, "UNIQ_KEY", 8))
            found.unique = (Span){at + 9, stop - at - 9};
    }
    return found;
}

/* Finds the next word of a text whose words are separated by single spaces; empty words are skipped. */
static inline int word_next(const uint8_t **at, const uint8_t *end, Span *word)
{
    while (*at < end) {
        const uint8_t *start = *at;
        const uint8_t *stop = memchr(start, ' ', (size_t)(end - start));
        if (!stop)
            stop = end;
        *at = stop < end ? stop + 1 : end;
        if (stop > start) {
            word->p = start, word->n = stop - start;
            return 1;
        }
    }
    return 0;
}

/* Returns one character of UTF-8. Bytes that are not UTF-8 give U+FFFD, one for each longest incomplete character, as
   in Python and Java; `*is_whole` is set to 0 then. */
static inline uint32_t utf8_next(const uint8_t **at, const uint8_t *end, int *is_whole)
{
    const uint8_t *p = *at;
    uint32_t c = *p++, low = 0x80, high = 0xBF, left;
    if (c < 0x80) {
        *at = p;
        return c;
    }
    if (c >= 0xC2 && c <= 0xDF)
        left = 1, c &= 0x1F;
    else if (c >= 0xE0 && c <= 0xEF)
        left = 2, low = c == 0xE0 ? 0xA0 : 0x80, high = c == 0xED ? 0x9F : 0xBF, c &= 0x0F;
    else if (c >= 0xF0 && c <= 0xF4)
        left = 3, low = c == 0xF0 ? 0x90 : 0x80, high = c == 0xF4 ? 0x8F : 0xBF, c &= 0x07;
    else
        left = 4;
    for (; left > 0 && left < 4; left--, low = 0x80, high = 0xBF) {
        if (p >= end || *p < low || *p > high)
            left = 5;
        else
            c = c << 6 | (*p++ & 0x3F);
        if (left == 5)
            break;
    }
    *at = p;
    if (left) {
        *is_whole = 0;
        return 0xFFFD;
    }
    return c;
}

static inline int is_utf8(Span s)
{
    const uint8_t *at = s.p, *end = s.p + s.n;
    int is_whole = 1;
    while (at < end && is_whole)
        utf8_next(&at, end, &is_whole);
    return is_whole;
}

/* The part of `java_hash_more` from the first non-ASCII character on. */
static uint32_t java_hash_wide(uint32_t value, const uint8_t *at, const uint8_t *end)
{
    int is_whole = 1;
    while (at < end) {
        uint32_t c = utf8_next(&at, end, &is_whole);
        if (c >= 0x10000) {
            c -= 0x10000;
            value = value * 31 + (0xD800 | c >> 10);
            c = 0xDC00 | (c & 0x3FF);
        }
        value = value * 31 + c;
    }
    return value;
}

/* Returns `String.hashCode` (over UTF-16 units) of a text whose hash is `hash`, continued by `s`. */
static inline int32_t java_hash_more(int32_t hash, Span s)
{
    const uint8_t *at = s.p, *end = s.p + s.n;
    uint32_t value = (uint32_t)hash, four;
    /* Four at a time: multiplications by powers of 31 do not depend on each other. */
    for (; end - at >= 4; at += 4) {
        memcpy(&four, at, 4);
        if (four & 0x80808080u)
            break;
        value = value * (31u * 31 * 31 * 31) + at[0] * (31u * 31 * 31) + at[1] * (31u * 31) + at[2] * 31u + at[3];
    }
    while (at < end && *at < 0x80)
        value = value * 31 + *at++;
    return (int32_t)(at < end ? java_hash_wide(value, at, end) : value);
}

/* Returns the hash in the form of the hash index: never negative, and 0 if Java's abs() overflows. */
static inline int32_t index_hash(int32_t hash) { return hash == INT32_MIN ? 0 : hash < 0 ? -hash : hash; }

/* Returns whether a text contains neither of the two bytes that separate properties. */
static inline int is_plain(Span s)
{
    int found = 0;
    for (int64_t i = 0; i < s.n; i++)
        found |= (uint8_t)(s.p[i] - 1) < 2;
    return !found;
}

/* Returns whether a text is one key: a space separates keys. */
static inline int is_key(Span s)
{
    return s.n > 0 && is_plain(s) && memchr(s.p, ' ', (size_t)s.n) == NULL;
}

/* Returns whether a tag expression can select a tag, or there is none: `||` joins them, `*` is any, outer spaces do
   not count. */
static inline int is_tag(Span s)
{
    if (!is_plain(s))
        return 0;
    for (int64_t i = 1; i < s.n; i++)
        if (s.p[i] == '|' && s.p[i - 1] == '|')
            return 0;
    return s.n == 0 || (s.p[0] > ' ' && s.p[s.n - 1] > ' ' && !(s.n == 1 && s.p[0] == '*'));
}

static inline uint8_t *put_pair(uint8_t *at, Span name, Span value)
{
    at = put_span(at, name), *at++ = NAME_END;
    at = put_span(at, value), *at++ = PAIR_END;
    return at;
}

/* Properties that a caller must not set: they have arguments of their own, are set by the store, or request delayed
   delivery. */
static const char *RESERVED_NAMES[] = {
    "TAGS", "KEYS", "__CRC32#", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", NULL,
};
