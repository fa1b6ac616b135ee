/*
 * inject.h: lets the n-th allocation that the project's own code asks for fail. A program that is linked with inject.c and
 * `inject_link_args` (meson.build) has every call of malloc and its kin in its own object files go through here
 * (the linker's --wrap): what the C library, OpenMP, a driver or a sanitizer allocates for itself is neither counted nor
 * failed, so that n means the same from run to run, in every build, and no caller has to be guessed from an address.
 * Opening a file or a folder and making a mutex or a thread count too: they fail for want of memory like the others.
 */
#ifndef EVO_TESTS_INJECT_H
#define EVO_TESTS_INJECT_H

#ifdef __cplusplus
extern "C" {
#endif

/* The n-th allocation from now on fails, and no other; 0: none. Counts from 0 again. */
void inject_after(long n);

/* Allocations since then, and the blocks that are there now: those given less those freed. */
long inject_seen(void);
long inject_live(void);

/* The function that failed ("calloc"), and where it was called if a sanitizer can tell; NULL if none has failed yet. */
const char *inject_failed(void);
const char *inject_place(void);

/* Whether it was a file of /proc or /sys: the library takes those if it can, and does without. */
int inject_was_optional(void);

/* The n-th dlsym from now on finds nothing; the name that it was asked for, NULL if it has not come to that yet. */
void inject_missing_after(long n);
const char *inject_missing(void);

#ifdef __cplusplus
}
#endif

#endif
