/* report.h: the part of `evo info --report` that `evo info` does not print anyway. */
#ifndef EVO_TOOLS_EVO_REPORT_H
#define EVO_TOOLS_EVO_REPORT_H

/* Prints lines on stdout. */
void print_report(void);

/* Prints a text on stdout; of each path in it only the last name, since folders may name people. */
void print_without_folders(const char *text);

#endif
