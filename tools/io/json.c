/* json.c: see json.h. */
#include "io/json.h"

#include <stdlib.h>

static _Thread_local bool is_short;

static void *allocate(size_t size) {
    void *memory = malloc(size);
    is_short |= memory == NULL;
    return memory;
}

void json_watch(void) {
    cJSON_Hooks hooks = { allocate, free };
    cJSON_InitHooks(&hooks);
}

bool json_short(void) {
    bool was = is_short;
    is_short = false;
    return was;
}

cJSON *json_append(cJSON *list, cJSON *item) {
    if (cJSON_AddItemToArray(list, item)) {
        return item;
    }
    cJSON_Delete(item);
    return NULL;
}

char *json_line(cJSON *object) {
    char *text = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    if (json_short()) {
        cJSON_free(text);
        text = NULL;
    }
    return text;
}
