/* tensor_pack.cu: weights as operands of matrix units. */
#include "backends/gpu/kernels/pack.h"
#include "backends/gpu/kernels/scales.h"

static constexpr int THREADS = GPU_PACK_THREADS;

EVO_DEVICE double load_weight(const gpu_weight &w, int64_t out, int64_t in, double fill) {
    return w.data ? load_double(w.data, w.dtype, out * w.strides[0] + in * w.strides[1]) : fill;
}

EVO_DEVICE float load_rounded(const gpu_weight &w, int64_t i, double fill) {
    return static_cast<float>(load_weight(w, i, 0, fill));
}

EVO_DEVICE float column_scale(const gpu_pack_rows_item &p, int64_t in) {
    if (!is_scaled(p.dtype) || !p.normed) return 1.0f;
    return power_of_two(column_exponent(load_rounded(p.norm_weight, in, 1.0), load_rounded(p.norm_bias, in, 0.0),
                                        static_cast<int>(p.ins)));
}

/* The sum of all threads' values, and the largest; in the same order every time. */
struct row_facts {
    double square, offset;
    float most;
    int infinite; /* how many elements are */
};

EVO_DEVICE row_facts gather(const row_facts &own, row_facts *shared) {
    shared[thread_x()] = own;
    block_barrier();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread_x() < half) {
            row_facts &a = shared[thread_x()];
            const row_facts &b = shared[thread_x() + half];
            a.square += b.square;
            a.offset += b.offset;
            a.most = larger(a.most, b.most);
            a.infinite += b.infinite;
        }
        block_barrier();
    }
    return shared[0];
}

EVO_DEVICE bool is_infinite(float x) {
    return (float_bits(x) & 0x7fffffffu) == 0x7f800000u;
}

/* What a row holds at most: of its elements over their columns' scales, and of its product with a LayerNorm's output. */
EVO_DEVICE row_facts measure_row(const gpu_pack_rows_item &p, int row, row_facts *shared) {
    row_facts own = { 0.0, 0.0, 0.0f, 0 };
    for (int64_t in = thread_x(); in < p.ins && row < p.outs; in += THREADS) {
        const float weight = static_cast<float>(load_weight(p.source, row, in, 0.0));
        const double finite = static_cast<double>(is_finite(weight) ? weight : 0.0f);
        const float gamma = load_rounded(p.norm_weight, in, 1.0), beta = load_rounded(p.norm_bias, in, 0.0);
        const double scaled = finite * static_cast<double>(is_finite(gamma) ? gamma : 0.0f);
        own.square += scaled * scaled;
        own.offset += finite * static_cast<double>(is_finite(beta) ? beta : 0.0f);
        own.most = larger(own.most, finite_magnitude(weight / column_scale(p, in)));
        own.infinite += is_infinite(weight);
    }
    return gather(own, shared);
}

/* Of an infinite element its sign, of a finite one nothing; NaN stays. */
EVO_DEVICE float sign_of_infinite(float weight) {
    return is_finite(weight) ? 0.0f : is_infinite(weight) ? (weight > 0.0f ? 1.0f : -1.0f) : weight;
}

EVO_DEVICE void pack_row(const gpu_pack_rows_item &p, int row, row_facts *shared) {
    const bool there = row < p.outs;
    const float bias = there ? load_rounded(p.bias, row, 0.0) : 0.0f;
    float scale = 1.0f, store = 1.0f;
    bool infinite = false;
    if (is_scaled(p.dtype)) {
        const row_facts facts = measure_row(p, row, shared);
        scale = power_of_two(OPERAND_EXPONENT - exponent_above(facts.most));
        const double root = static_cast<double>(square_root(static_cast<float>(p.ins))) *
                            static_cast<double>(square_root(static_cast<float>(facts.square)));
        const float most = static_cast<float>(root) + finite_magnitude(static_cast<float>(facts.offset) + bias);
        store = power_of_two(STORE_EXPONENT - exponent_above(is_finite(most) ? most : power_of_two(127)));
        infinite = p.dtype == GPU_SPLIT && facts.infinite > 0;
    }
    const int64_t packed = static_cast<int64_t>(row / 16 * p.tile_rows + row % 16) * p.depth;
    for (int64_t in = thread_x(); in < p.depth; in += THREADS) {
        float value = 0.0f;
        if (there && in < p.ins) {
            const float weight = static_cast<float>(load_weight(p.source, row, in, 0.0));
            value = infinite ? sign_of_infinite(weight) : weight / column_scale(p, in) * scale;
        }
        store_operand(p.target, p.dtype, packed + in, value);
    }
    if (thread_x() != 0) return;
    const float stored = p.store_scale ? store : 1.0f;
    p.table[4 * row] = infinite ? bits_float(0x7f800000u) : stored / scale;
    p.table[4 * row + 1] = bias * stored;
    if (p.store_scale) p.store_scale[row] = stored;
}

EVO_KERNEL(evo_tensor_pack_rows, gpu_pack_rows_params, THREADS, 1) {
    EVO_SHARED(row_facts, shared, THREADS);
    const gpu_pack_rows_item &item = p.items[pack_item(p)];
    pack_row(item, pack_block(item), shared);
}

EVO_DEVICE void pack_channel(const gpu_pack_norm_item &p, int i) {
    if (i >= p.width) return;
    float weight = 0.0f, bias = 0.0f, factor = 1.0f;
    if (i < p.channels) {
        weight = load_rounded(p.weight, i, 1.0);
        bias = load_rounded(p.bias, i, 0.0);
        if (is_scaled(p.dtype)) {
            const float scale = power_of_two(column_exponent(weight, bias, p.channels));
            weight *= scale;
            bias *= scale;
            if (p.store_scale[0]) factor = 1.0f / p.store_scale[0][i] / p.store_scale[1][i];
        }
    }
    const int own = i % GPU_NORM_GROUP, place = i - own + own % 8 / 2 * 16 + own / 8 * 2 + own % 2; /* with stride 2 */
    float *const target = p.target + p.stride * (p.stride == 2 ? place : i);
    target[0] = weight;
    target[1] = bias;
    if (p.stride > 2) {
        target[2] = factor;
        target[3] = 0.0f;
    }
}

EVO_KERNEL(evo_tensor_pack_norm, gpu_pack_norm_params, THREADS, 1) {
    const gpu_pack_norm_item &item = p.items[pack_item(p)];
    pack_channel(item, pack_block(item) * THREADS + thread_x());
}
