/* known.h: golden files inside the evo command: inputs, and outputs that other projects' own code computed. */
#ifndef EVO_TOOLS_EVO_KNOWN_H
#define EVO_TOOLS_EVO_KNOWN_H

struct known_answer {
    const char *name; /* the file's, without its suffix; NULL after the last */
    const unsigned char *begin, *end;
};

extern const struct known_answer known_answers[];

#endif
