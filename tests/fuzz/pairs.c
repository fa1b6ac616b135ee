/*
 * pairs.c: the reader of lists of pairs (examples/contacts.c: "i j score" a line) on any bytes: what it takes is sorted, within
 * the columns, apart from each other, and the same after it was written and read again.
 */
#include "fuzz.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coevolution.h"

static const char *input, *copy;

void fuzz_set_up(void) {
    input = strdup(fuzz_path("input"));
    copy = strdup(fuzz_path("copy"));
}

/* The first byte says how many columns there are. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pair_list list, again;
    if (size == 0) return -1;
    const size_t columns = data[0] < 200 ? (size_t)data[0] + 1 : (size_t)data[0] * 100;
    fuzz_write(input, data + 1, size - 1);
    if (!contact_read(&list, input, columns)) return 0;
    FUZZ_CHECK(list.count > 0 && list.count <= BEST);
    for (size_t k = 0; k < list.count; k++) {
        const struct pair *pair = &list.pairs[k];
        FUZZ_CHECK(pair->i < pair->j && pair->j < columns && pair->j - pair->i >= SEPARATION && isfinite(pair->score));
        FUZZ_CHECK(k == 0 || pair->score <= list.pairs[k - 1].score);
        for (size_t other = 0; other < k; other++)
            FUZZ_CHECK(list.pairs[other].i != pair->i || list.pairs[other].j != pair->j);
    }
    FUZZ_CHECK(contact_common(&list, &list) == list.count);
    if (!contact_write(&list, copy) || !contact_read(&again, copy, columns)) fuzz_fail("its copy is not read");
    FUZZ_CHECK(again.count == list.count);
    for (size_t k = 0; k < list.count; k++)
        FUZZ_CHECK(contact_listed(&again, &list.pairs[k]) &&
                   fabs(again.pairs[k].score - list.pairs[k].score) <= 1e-6 + 1e-12 * fabs(list.pairs[k].score));
    return 0;
}
