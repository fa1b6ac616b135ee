/* wrong.c: in front of the library, a triangle multiplication that computes nothing and says that all is well. */
#include <evoformer/evoformer.h>

__attribute__((visibility("default"))) evo_status evo_trimul_execute(const evo_plan *plan, const evo_pack *pack,
                                                                     const evo_trimul_args *args, void *workspace,
                                                                     size_t workspace_size, evo_stream stream) {
    (void)plan;
    (void)pack;
    (void)args;
    (void)workspace;
    (void)workspace_size;
    (void)stream;
    return EVO_OK;
}
