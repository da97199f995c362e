/* Writes texts into an Arrow column, which must be UTF-8: bytes that are not UTF-8 are replaced by U+FFFD. */
#pragma once
#include <stdlib.h>
#include "text.h"

enum { REPLACEMENT_SIZE = 3 };

static inline int is_ascii(Span s)
{
    const uint8_t *p = s.p;
    int64_t n = s.n;
    uint64_t seen = 0, some;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&some, p, 8);
        seen |= some;
    }
    while (n-- > 0)
        seen |= *p++;
    return (seen & 0x8080808080808080u) == 0;
}

/* Returns how many bytes a text takes in a column. */
static inline int64_t text_room(Span s)
{
    const uint8_t *at = s.p, *end = s.p + s.n;
    int64_t room = 0;
    if (is_ascii(s))
        return s.n;
    while (at < end) {
        const uint8_t *start = at;
        int is_whole = 1;
        utf8_next(&at, end, &is_whole);
        room += is_whole ? at - start : REPLACEMENT_SIZE;
    }
    return room;
}

static inline uint8_t *replaced_put(uint8_t *to, const uint8_t *stop, Span s)
{
    const uint8_t *at = s.p, *end = s.p + s.n;
    while (at < end) {
        const uint8_t *start = at;
        int is_whole = 1;
        int64_t n;
        utf8_next(&at, end, &is_whole);
        n = is_whole ? at - start : REPLACEMENT_SIZE;
        if (n > stop - to)
            break;
        memcpy(to, is_whole ? start : (const uint8_t *)"\xEF\xBF\xBD", (size_t)n), to += n;
    }
    return to;
}

/* Writes a text and returns where it ends; NULL if memory could not be allocated. The window may be a file that another
   process changes meanwhile, so the text is copied before it is checked, and is cut off at `stop`. */
static inline uint8_t *text_put(uint8_t *to, const uint8_t *stop, Span s)
{
    Span copy = {to, s.n < stop - to ? s.n : stop - to};
    uint8_t *own;
    if (copy.n)
        memcpy(to, s.p, (size_t)copy.n);
    if (is_ascii(copy) || is_utf8(copy))
        return to + copy.n;
    own = malloc((size_t)copy.n);
    if (!own)
        return NULL;
    memcpy(own, to, (size_t)copy.n), copy.p = own;
    to = replaced_put(to, stop, copy);
    free(own);
    return to;
}

/* Writes bytes as upper-case hexadecimal digits, and returns where they end. */
static inline uint8_t *hex_put(uint8_t *to, const uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        *to++ = (uint8_t)"0123456789ABCDEF"[p[i] >> 4];
        *to++ = (uint8_t)"0123456789ABCDEF"[p[i] & 15];
    }
    return to;
}
