/* random.c: xoshiro256** by Blackman and Vigna (public domain), seeded from a number and a name. */
#include <math.h>

#include "case/case.h"

static uint64_t mix(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t rotate(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

void case_random_seed(struct case_random *random, uint64_t seed, const char *stream) {
    uint64_t state = seed;
    for (const char *p = stream; *p != '\0'; p++) {
        state = (state ^ (unsigned char)*p) * 0x100000001b3u;
    }
    for (int i = 0; i < 4; i++) {
        random->state[i] = mix(&state);
    }
}

uint64_t case_random_bits(struct case_random *random) {
    uint64_t *s = random->state;
    uint64_t result = rotate(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

double case_random_uniform(struct case_random *random) {
    /* 53 bits, in the middle of their interval: neither 0 nor 1. */
    return ((double)(case_random_bits(random) >> 11) + 0.5) * 0x1p-53;
}

double case_random_normal(struct case_random *random) {
    /* Box and Muller's cosine; the sine is given up, so that no state but the generator's is kept. */
    double radius = sqrt(-2.0 * log(case_random_uniform(random)));
    return radius * cos(6.283185307179586 * case_random_uniform(random));
}
