/*
 * json.h: a mutation of JSON for libFuzzer's custom mutators: a value takes the place of another. libFuzzer's own mutations
 * insert and erase bytes, and so seldom turn a string into a number, or a list into a string.
 */
#ifndef EVO_TESTS_FUZZ_JSON_H
#define EVO_TESTS_FUZZ_JSON_H

#include <stdint.h>
#include <string.h>

/* The end of the value or key that begins at `at`; `at` itself if none does. */
static inline size_t json_end(const char *text, size_t at, size_t size) {
    size_t end = at;
    int depth = 0;
    if (text[at] == '"') {
        for (end++; end < size && text[end] != '"'; end++) end += text[end] == '\\';
        return end < size ? end + 1 : size;
    }
    if (text[at] == '[' || text[at] == '{') {
        for (; end < size; end++) {
            depth += (text[end] == '[' || text[end] == '{') - (text[end] == ']' || text[end] == '}');
            if (depth == 0) return end + 1;
        }
        return size;
    }
    while (end < size && strchr(" ,:[]{}\"\n", text[end]) == NULL) end++;
    return end;
}

/* The number of values and keys; the one numbered `wanted` lies from *begin to *end. */
static inline unsigned json_count(const char *text, size_t size, unsigned wanted, size_t *begin, size_t *end) {
    unsigned count = 0;
    for (size_t at = 0; at < size;) {
        const size_t after = json_end(text, at, size);
        if (after > at && count++ == wanted) {
            *begin = at;
            *end = after;
        }
        /* Lists and objects are entered; so each value within them is found too. */
        at = after > at && text[at] != '[' && text[at] != '{' ? after : at + 1;
    }
    return count;
}

/* Puts one value in the place of another; the new size, or 0 if there is none or no room. */
static inline size_t json_mutate(uint8_t *data, size_t size, size_t most, unsigned seed) {
    static const char *const values[] = { "null",  "true",  "false", "0",     "1",         "-1",
                                          "1e999", "1.5",   "\"\"",  "[]",    "{}",        "[null]",
                                          "3",     "\"x\"", "[0,0]", "1e300", "[\"out\"]", "9007199254740993" };
    char *text = (char *)data, copy[256];
    size_t begin = 0, end = 0, from = 0, to = 0;
    const unsigned count = json_count(text, size, 0, &begin, &end);
    if (count == 0) return 0;
    (void)json_count(text, size, seed % count, &begin, &end);
    if (seed / 1024 % 2 == 0) {
        const char *value = values[seed / 4096 % (sizeof values / sizeof *values)];
        to = strlen(value);
        memcpy(copy, value, to);
    } else {
        (void)json_count(text, size, seed / 4096 % count, &from, &to);
        to = to - from < sizeof copy ? to - from : sizeof copy;
        memcpy(copy, text + from, to);
    }
    if (size - (end - begin) + to > most) return 0;
    memmove(text + begin + to, text + end, size - end);
    memcpy(text + begin, copy, to);
    return size - (end - begin) + to;
}

#endif
