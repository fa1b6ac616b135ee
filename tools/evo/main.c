/* main.c: where the program `evo` starts. All of it is a function, which tests call in their own process. */
#include "command.h"

int main(int argc, char **argv) {
    return evo_command(argc, argv);
}
