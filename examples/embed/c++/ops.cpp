/*
 * ops.cpp: one outer product mean and one triangle multiplication with libevoformer, in C++17.
 * usage: ops                on numbers that are made up
 *        ops CASE RESULT    on the sizes and arrays of a file; the two outputs go to another
 */
#include <evoformer/evoformer.hpp>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <list>

using std::int64_t;

/* Arrays on the device, filled from a file or with numbers that are made up. */
class arrays {
  public:
    arrays(const evoformer::context &context, std::ifstream &input) : context_(context), input_(input) {
    }

    void *allocate(std::size_t bytes) {
        return memory_.emplace_back(context_, bytes).data();
    }

    void *next(int64_t count) {
        std::vector<float> host(static_cast<std::size_t>(count));
        for (float &number : host) number = 0.5f + 0.5f * std::sin(static_cast<float>(made_up_++));
        if (input_.is_open()) read(host);
        void *device = allocate(host.size() * sizeof(float));
        context_.copy(device, host.data(), host.size() * sizeof(float));
        context_.synchronize(); // the copy is done: the host's memory may go
        return device;
    }

    /* Contiguous; a view with other strides would take weights as another program stores them. */
    evo_weight weight(int64_t count) {
        return { next(count), EVO_FP32, { 0, 0 } };
    }

    /* Replaces numbers by those of the file, if there is one. */
    template <class Number> void read(std::vector<Number> &values) {
        if (!input_.is_open()) return;
        input_.read(reinterpret_cast<char *>(values.data()),
                    static_cast<std::streamsize>(values.size() * sizeof(Number)));
        if (!input_) throw std::runtime_error("the case's file ends");
    }

  private:
    const evoformer::context &context_;
    std::ifstream &input_;
    std::list<evoformer::memory> memory_;
    static inline int made_up_ = 0;
};

/* Packs, executes, and brings the result back: the same lines for every op. */
template <class Weights, class Args>
void run(const evoformer::context &context, const evoformer::plan &plan, const Weights &weights, const Args &args,
         int64_t count, std::ostream &output) {
    const evo_plan_info info = plan.info();
    evoformer::memory pack_memory(context, info.pack_size), workspace(context, info.workspace_size);
    // A pack serves every plan with these channels and this kernel, whatever its N and S.
    evoformer::pack pack(plan, weights, pack_memory.data(), pack_memory.size());
    plan.execute(pack, args, workspace.data(), workspace.size());

    std::vector<float> host(static_cast<std::size_t>(count));
    context.copy(host.data(), args.out, host.size() * sizeof(float));
    context.synchronize();
    std::cout << evo_op_name(info.op) << " with kernel " << info.kernel << ": " << count << " numbers, the first is "
              << host.at(0) << "\n";
    output.write(reinterpret_cast<const char *>(host.data()),
                 static_cast<std::streamsize>(host.size() * sizeof(float)));
}

void outer_product_mean(const evoformer::context &context, std::ifstream &input, std::ostream &output) {
    arrays data(context, input);
    std::vector<int64_t> size{ 1, 64, 32, 32, 16, 24 };
    data.read(size);
    const int64_t b = size[0], s = size[1], n = size[2], c_m = size[3], c = size[4], c_z = size[5];

    evo_opm_desc desc = EVO_OPM_DESC_INIT;
    desc.batch = b, desc.s = s, desc.n = n, desc.c_m = c_m, desc.c = c, desc.c_z = c_z;
    desc.mask.dtype = EVO_FP32; // m and out are EVO_FP32 unless told otherwise
    evoformer::check(evo_opm_set_variant(&desc, "alphafold2"));

    evo_opm_args args = EVO_OPM_ARGS_INIT;
    args.m = data.next(b * s * n * c_m); // [B, S, N, c_m]
    args.mask = data.next(b * s * n);    // [B, S, N]
    args.out = data.allocate(static_cast<std::size_t>(b * n * n * c_z) * sizeof(float));
    evo_opm_weights weights = EVO_OPM_WEIGHTS_INIT;
    weights.norm_weight = data.weight(c_m), weights.norm_bias = data.weight(c_m);
    weights.a_weight = data.weight(c * c_m), weights.a_bias = data.weight(c);
    weights.b_weight = data.weight(c * c_m), weights.b_bias = data.weight(c);
    weights.out_weight = data.weight(c_z * c * c), weights.out_bias = data.weight(c_z);
    run(context, evoformer::plan(context, desc), weights, args, b * n * n * c_z, output);
}

void triangle_multiplication(const evoformer::context &context, std::ifstream &input, std::ostream &output) {
    arrays data(context, input);
    std::vector<int64_t> size{ 1, 32, 24, 16, EVO_OUTGOING };
    data.read(size);
    const int64_t b = size[0], n = size[1], c_z = size[2], c = size[3];

    evo_trimul_desc desc = EVO_TRIMUL_DESC_INIT; // variant "alphafold2"
    desc.batch = b, desc.n = n, desc.c_z = c_z, desc.c = c;
    desc.direction = static_cast<evo_direction>(size[4]);
    desc.mask.dtype = EVO_FP32;

    evo_trimul_args args = EVO_TRIMUL_ARGS_INIT;
    args.z = data.next(b * n * n * c_z); // [B, N, N, c_z]
    args.mask = data.next(b * n * n);    // [B, N, N]
    args.out = data.allocate(static_cast<std::size_t>(b * n * n * c_z) * sizeof(float));
    evo_trimul_weights weights = EVO_TRIMUL_WEIGHTS_INIT;
    weights.norm_in_weight = data.weight(c_z), weights.norm_in_bias = data.weight(c_z);
    weights.a_proj_weight = data.weight(c * c_z), weights.a_proj_bias = data.weight(c);
    weights.a_gate_weight = data.weight(c * c_z), weights.a_gate_bias = data.weight(c);
    weights.b_proj_weight = data.weight(c * c_z), weights.b_proj_bias = data.weight(c);
    weights.b_gate_weight = data.weight(c * c_z), weights.b_gate_bias = data.weight(c);
    weights.norm_out_weight = data.weight(c), weights.norm_out_bias = data.weight(c);
    weights.out_weight = data.weight(c_z * c), weights.out_bias = data.weight(c_z);
    weights.out_gate_weight = data.weight(c_z * c_z), weights.out_gate_bias = data.weight(c_z);
    run(context, evoformer::plan(context, desc), weights, args, b * n * n * c_z, output);
}

int main(int argc, char **argv) try {
    std::ifstream input;
    std::ofstream output;
    if (argc == 3) {
        input.exceptions(std::ios::failbit);
        input.open(argv[1], std::ios::binary);
        input.exceptions(std::ios::goodbit);
        output.open(argv[2], std::ios::binary);
    }
    evoformer::context context("auto"); // a GPU that the library has kernels for, else the CPU
    outer_product_mean(context, input, output);
    triangle_multiplication(context, input, output);
    output.close();
    return argc == 3 && !output ? EXIT_FAILURE : EXIT_SUCCESS;
} catch (const std::exception &failure) {
    std::cerr << "ops: " << failure.what() << "\n";
    return EXIT_FAILURE;
}
