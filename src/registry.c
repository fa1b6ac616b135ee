/* registry.c: the tables of backends (best first, with those that this binary was built without) and of ops. */
#include "src/context.h"

/* The build defines EVO_WITH_<BACKEND> as 1 or 0 for each backend. */
#define IMPLEMENTATION_1(name) &evo_backend_##name
#define IMPLEMENTATION_0(name) NULL
#define IMPLEMENTATION_(name, compiled) IMPLEMENTATION_##compiled(name)
#define IMPLEMENTATION(name, compiled) IMPLEMENTATION_(name, compiled)

static const struct {
    const char *name;
    const evo_backend *backend;
} backends[] = {
    { "cuda", IMPLEMENTATION(cuda, EVO_WITH_CUDA) },
    { "hip", IMPLEMENTATION(hip, EVO_WITH_HIP) },
    { "cpu", IMPLEMENTATION(cpu, EVO_WITH_CPU) },
};

const char *evo_backend_name(int index) {
    const int count = (int)(sizeof backends / sizeof *backends);
    return index >= 0 && index < count ? backends[index].name : NULL;
}

const evo_backend *evo_backend_compiled(int index) {
    return evo_backend_name(index) ? backends[index].backend : NULL;
}

void evo_backends_text(evo_text *text) {
    const char *separator = "";
    for (int index = 0; evo_backend_name(index); index++) {
        if (!evo_backend_compiled(index)) continue;
        evo_text_add(text, "%s%s", separator, evo_backend_name(index));
        separator = ", ";
    }
}

const char *evo_op_name(evo_op op) {
    static const char *const names[] = { "opm", "trimul" };
    const int index = (int)op, count = (int)(sizeof names / sizeof *names);
    return index >= 0 && index < count ? names[index] : NULL;
}
