/*
 * fuzz.h: what the fuzz targets share. A target is a source that defines fuzz_set_up and LLVMFuzzerTestOneInput; it is
 * linked with libFuzzer (-Dfuzz=true, clang), or with replay.c, which runs it on the files of its corpus in every other build.
 */
#ifndef EVO_TESTS_FUZZ_H
#define EVO_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether AddressSanitizer or ThreadSanitizer is compiled in. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FUZZ_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FUZZ_SANITIZED 1
#endif
#endif
#ifndef FUZZ_SANITIZED
#define FUZZ_SANITIZED 0
#endif

/* Called by libFuzzer or replay.c, once and for each input; a target returns -1 for an input that it does not take. */
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The target's own part of LLVMFuzzerInitialize; what is below works already. */
void fuzz_set_up(void);

/* The oracle's verdict: prints the message where libFuzzer's own go, and aborts. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2), noreturn))
#endif
void fuzz_fail(const char *format, ...);

/* Fails unless the condition holds. */
#define FUZZ_CHECK(condition)                                                                          \
    do {                                                                                               \
        if (!(condition)) fuzz_fail("%s:%d: not true: %s", __FILE__, __LINE__, #condition);           \
    } while (0)

/* The path of a file in a temporary folder of this process (`/` may follow in no name); the folder goes when it exits. */
const char *fuzz_path(const char *name);
const char *fuzz_folder(void);

/* Writes such a file whole; false if the name is a folder's. */
void fuzz_write(const char *path, const void *data, size_t size);

/* Bytes of the input that are taken one after another; zeros once they are used up. */
struct fuzz_input {
    const uint8_t *at, *end;
};

static inline uint8_t fuzz_byte(struct fuzz_input *in) {
    return (uint8_t)(in->at < in->end ? *in->at++ : 0);
}

/* 0 to count - 1. */
static inline unsigned fuzz_below(struct fuzz_input *in, unsigned count) {
    return fuzz_byte(in) % count;
}

#endif
