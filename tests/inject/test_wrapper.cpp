/*
 * test_wrapper.cpp: each allocation of the C++ wrapper, of the library below it and of the standard library's containers in
 * it fails once: an exception comes (std::bad_alloc or evoformer::error), nothing is left behind, and the next try goes well.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include <evoformer/evoformer.hpp>

#include "inject.h"

/* Of the whole program; malloc here is one that can fail. */
void *operator new(std::size_t size) {
    void *memory = malloc(size ? size : 1);
    if (!memory) throw std::bad_alloc();
    return memory;
}

void operator delete(void *memory) noexcept {
    free(memory);
}

void operator delete(void *memory, std::size_t) noexcept {
    free(memory);
}

namespace {

/* Opens, plans, packs, executes at once and as a graph, asks; all of it goes at the end. */
void live() {
    evoformer::context context(std::string("cpu"));
    evo_trimul_desc d = EVO_TRIMUL_DESC_INIT;
    evo_trimul_weights w = EVO_TRIMUL_WEIGHTS_INIT;
    d.n = 5;
    d.c_z = d.c = 8;
    const std::size_t bytes = 5 * 5 * 8 * sizeof(float);
    evoformer::plan plan(context, d);
    evoformer::memory in(context, bytes), out(context, bytes);
    evoformer::memory packed(context, plan.info().pack_size), workspace(context, plan.info().workspace_size);
    evoformer::stream stream(context);
    evoformer::event event(context);
    context.fill(in.data(), 0, bytes, stream);
    for (evo_weight *each = &w.norm_in_weight; each <= &w.out_gate_bias; each++)
        *each = { in.data(), EVO_FP32, { 0, 0 } };
    evoformer::pack pack(plan, w, packed.data(), packed.size(), stream);
    evo_trimul_args args = EVO_TRIMUL_ARGS_INIT;
    args.z = in.data();
    args.out = out.data();
    evoformer::graph graph(context, stream,
                           [&] { plan.execute(pack, args, workspace.data(), workspace.size(), stream); });
    graph.launch(stream);
    event.record(stream);
    stream.synchronize();
    if (evoformer::devices().empty()) throw std::runtime_error("no device");
}

/* Why it did not go well; "" if it did. */
std::string words() {
    try {
        live();
    } catch (const std::bad_alloc &) {
        return "no memory";
    } catch (const evoformer::error &e) {
        return e.status() == EVO_ERROR_OUT_OF_MEMORY ? e.what() : "another status";
    }
    return "";
}

} // namespace

int main() {
    long n = 1;
    for (;; n++) {
        const long before = inject_live();
        inject_after(n);
        {
            const std::string text = words();
            if (!inject_failed()) break;
            const bool optional = inject_was_optional();
            inject_after(0);
            if (!optional && !strstr(text.c_str(), "memory")) {
                fprintf(stderr, "allocation %ld, %s: %s\n", n, inject_place(), text.c_str());
                return 1;
            }
        }
        if (inject_live() != before) {
            fprintf(stderr, "allocation %ld: %ld blocks are left\n", n, inject_live() - before);
            return 1;
        }
        if (!words().empty()) {
            fprintf(stderr, "allocation %ld: afterwards: %s\n", n, words().c_str());
            return 1;
        }
    }
    printf("%ld allocations\n", n - 1);
    return n > 20 ? 0 : 1;
}
