/*
 * json.h: what cJSON does not say: that memory ran out. It leaves out what it has none for, and calls text that it has no
 * room for invalid; so a program calls json_watch first, and asks json_short when it has built, printed or parsed.
 */
#ifndef EVO_TOOLS_IO_JSON_H
#define EVO_TOOLS_IO_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>

/** From now on cJSON's memory is watched, in all of the program. Without it json_short is always false. */
void json_watch(void);

/** Whether cJSON got no memory in this thread since the last question. */
bool json_short(void);

/** Adds the item to a list and returns it; one that cannot be added is deleted, and the result NULL, which cJSON takes too. */
cJSON *json_append(cJSON *list, cJSON *item);

/** The object on one line, to be freed with cJSON_free; deletes it. NULL if there was not enough memory for all of it. */
char *json_line(cJSON *object);

#endif
