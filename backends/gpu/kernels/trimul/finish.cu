/*
 * finish.cu: LayerNorm of t over its channels, output projection, gate and residual. A block takes 64 positions and 128
 * output channels at a time; both products stay in registers. One block does all channels of its positions and has read all
 * of z there before it writes, so that 128 channels may be written over z.
 */
#include "backends/gpu/kernels/layer_norm.h"
#include "backends/gpu/kernels/trimul/params.h"

static constexpr int ROWS = GPU_FINISH_ROWS, COLS = GPU_FINISH_COLUMNS;
using tile_t = tile<ROWS, COLS, 4, 8, GPU_STAGE_DEPTH, 4>;

/* t's positions as operand a: channel by channel, four positions a thread. `stats` are those of the four. */
struct normed_channels {
    const float *next; /* this thread's positions in its first channel */
    int64_t channel_stride;
    int channel, channels;
    bool valid;
    const float *mean, *rest, *scale;
    const float *weight, *bias; /* LayerNorm's, zeros past the channels */
    float x[4], w, b;

    EVO_METHOD static bool has_thread() {
        return thread_x() < tile_t::DEPTH * panel_a<tile_t>::QUADS;
    }

    EVO_METHOD void fetch(int k) {
        if (!has_thread()) return;
        const bool inside = valid && k + channel < channels;
        EVO_UNROLL
        for (int e = 0; e < 4; e++) x[e] = 0.0f;
        if (inside) unpack(*reinterpret_cast<const float4_t *>(next + k * channel_stride), x);
        w = weight[k + channel];
        b = bias[k + channel];
    }

    EVO_METHOD void put(float *stage) {
        if (!has_thread()) return;
        float m[4], r[4], s[4];
        unpack(*reinterpret_cast<const float4_t *>(mean), m);
        unpack(*reinterpret_cast<const float4_t *>(rest), r);
        unpack(*reinterpret_cast<const float4_t *>(scale), s);
        EVO_UNROLL
        for (int e = 0; e < 4; e++) m[e] = multiply_add((x[e] - m[e] - r[e]) * s[e], w, b);
        *reinterpret_cast<float4_t *>(stage + thread_x() * 4) = { m[0], m[1], m[2], m[3] };
    }
};

/* Sums of (t - mean - rest)^POWER over the channels of a position, by 4 threads each; all 4 get the total. */
template <int POWER>
EVO_DEVICE float sum_of_t(const float *t, int64_t stride, int channels, float mean, float rest, float *shares) {
    constexpr int SHARES = GPU_THREADS / ROWS;
    const int row = thread_x() % ROWS;
    float sum = 0.0f;
    for (int h = thread_x() / ROWS; h < channels; h += SHARES) {
        const float d = t[h * stride] - mean - rest;
        sum += POWER == 1 ? d : d * d;
    }
    shares[thread_x()] = sum;
    block_barrier();
    const float total = shares[row] + shares[row + ROWS] + (shares[row + 2 * ROWS] + shares[row + 3 * ROWS]);
    block_barrier();
    return total;
}

EVO_DEVICE void measure_t(const gpu_finish_params &p, int64_t first, float *shares, statistics<ROWS> *normed) {
    const int row = thread_x() % ROWS;
    const bool valid = first + row < p.positions;
    const float *t = p.t + block_z() * p.t_batch + (valid ? first + row : first);
    const float count = static_cast<float>(p.c);
    const float mean = sum_of_t<1>(t, p.t_channel, p.c, 0.0f, 0.0f, shares) / count;
    const float rest = sum_of_t<1>(t, p.t_channel, p.c, mean, 0.0f, shares) / count;
    const float variance = sum_of_t<2>(t, p.t_channel, p.c, mean, rest, shares) / count;
    if (thread_x() < ROWS) {
        normed->mean[row] = mean;
        normed->rest[row] = rest;
        normed->scale[row] = 1.0f / square_root(variance + p.eps_out);
    }
}

/* The offset of position m's first channel in a tensor; false if there is no such position. */
EVO_DEVICE bool locate(const gpu_finish_params &p, const gpu_tensor &tensor, int64_t batch_begin, int64_t row_begin,
                       int64_t m, int64_t *offset) {
    const int64_t i = m / p.pitch, j = m - i * p.pitch;
    *offset =
        (batch_begin + block_z()) * tensor.strides[0] + (row_begin + i) * tensor.strides[1] + j * tensor.strides[2];
    return m < p.positions && j < p.n;
}

/* Statistics of z; where the gate reads z itself, those that change nothing. */
EVO_DEVICE void measure_z(const gpu_finish_params &p, int64_t first, statistics<ROWS> *normed) {
    for (int row = thread_x() / 8; row < ROWS; row += GPU_THREADS / 8) {
        int64_t offset;
        const bool measured = locate(p, p.z, p.batch_begin, p.row_begin, first + row, &offset) && !p.raw_gate;
        float mean, rest, scale;
        position_statistics(p.z, offset, measured ? p.c_z : 0, p.eps_in, &mean, &rest, &scale);
        if (thread_x() % 8 == 0) {
            normed->mean[row] = measured ? mean : 0.0f;
            normed->rest[row] = measured ? rest : 0.0f;
            normed->scale[row] = measured ? scale : 1.0f;
        }
    }
}

EVO_DEVICE void write_positions(const gpu_finish_params &p, int64_t first, int first_column, const float (&y)[4][8],
                                const float (&gate)[4][8]) {
    const place at = thread_place<tile_t>();
    EVO_UNROLL
    for (int r = 0; r < 4; r++) {
        int64_t offset, residual_offset = 0;
        if (!locate(p, p.out, p.out_batch_begin, p.out_row_begin, first + at.row + r, &offset)) continue;
        if (p.residual.dtype != GPU_NONE)
            locate(p, p.residual, p.batch_begin, p.row_begin, first + at.row + r, &residual_offset);
        EVO_UNROLL
        for (int c = 0; c < 2; c++) {
            const int q = first_column + at.col + 32 * c;
            if (q >= p.c_out) continue;
            float value[4], added[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
            if (p.residual.dtype != GPU_NONE)
                load_four(p.residual, residual_offset + q * p.residual.strides[3], p.c_out - q, added);
            EVO_UNROLL
            for (int e = 0; e < 4; e++)
                value[e] = multiply_add(sigmoid(gate[r][4 * c + e] + p.gate_bias[q + e]),
                                        y[r][4 * c + e] + p.bias[q + e], added[e]);
            store_four(p.out, offset + q * p.out.strides[3], p.c_out - q, value);
        }
    }
}

using operands_of_t = staged_operands<tile_t, normed_channels>;
using operands_of_z = staged_operands<tile_t, normed_rows<tile_t>>;

EVO_KERNEL(evo_trimul_finish, gpu_finish_params, GPU_THREADS, 1) {
    EVO_SHARED(float, a_stages, operands_of_t::A_FLOATS);
    EVO_SHARED(float, b_stages, operands_of_t::B_FLOATS);
    EVO_SHARED(statistics<ROWS>, normed_t, 1);
    EVO_SHARED(statistics<ROWS>, normed_z, 1);
    const int64_t first = static_cast<int64_t>(block_x()) * ROWS;
    measure_t(p, first, b_stages, normed_t);
    measure_z(p, first, normed_z);
    block_barrier();

    normed_channels t;
    const int at_t = panel_a<tile_t>::thread_column(), row_z = normed_rows<tile_t>::thread_row();
    t.channel = thread_x() / panel_a<tile_t>::QUADS;
    t.channels = p.c;
    t.weight = p.norm_t_weight;
    t.bias = p.norm_t_bias;
    t.channel_stride = p.t_channel;
    t.next = p.t + block_z() * p.t_batch + first + at_t + t.channel * p.t_channel;
    t.valid = first + at_t < p.positions;
    t.mean = normed_t->mean + at_t;
    t.rest = normed_t->rest + at_t;
    t.scale = normed_t->scale + at_t;
    normed_rows<tile_t> z;
    z.tensor = &p.z;
    z.valid = locate(p, p.z, p.batch_begin, p.row_begin, first + row_z, &z.offset);
    z.channels = p.c_z;
    z.weight = p.norm_z_weight;
    z.bias = p.norm_z_bias;
    z.mean = normed_z->mean[row_z];
    z.rest = normed_z->rest[row_z];
    z.scale = normed_z->scale[row_z];

    operands_of_t of_t;
    operands_of_z of_z;
    of_t.source = &t;
    of_z.source = &z;
    of_t.a_stages = of_z.a_stages = a_stages;
    of_t.b_stages = of_z.b_stages = b_stages;
    for (int column = 0; column < p.c_out; column += COLS) {
        const int own = column + panel_b<tile_t>::thread_column();
        float y[4][8], gate[4][8];
        clear(y);
        of_t.b.start(p.weight + own, p.width, p.c, own < p.width);
        multiply_operands<tile_t>(of_t, p.c, y);
        block_barrier();
        clear(gate);
        of_z.b.start(p.gate_weight + own, p.width, p.c_z, own < p.width);
        multiply_operands<tile_t>(of_z, p.c_z, gate);
        block_barrier();
        write_positions(p, first, column, y, gate);
    }
}

EVO_KERNEL(evo_trimul_copy, gpu_copy_params, GPU_COPY_THREADS, 1) {
    const int64_t element = static_cast<int64_t>(block_x()) * GPU_COPY_THREADS + thread_x();
    if (element >= p.elements) return;
    const int64_t position = element / p.c_out, q = element % p.c_out, i = position / p.n, j = position % p.n;
    const int64_t *strides = p.out.strides;
    store_number(p.out.data, p.out.dtype,
                 (p.batch_begin + block_z()) * strides[0] + (p.row_begin + i) * strides[1] + j * strides[2] +
                     q * strides[3],
                 p.staging[block_z() * p.elements + element]);
}
