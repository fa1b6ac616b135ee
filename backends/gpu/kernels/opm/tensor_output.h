/* tensor_output.h: the last step of the outer product mean's kernels on matrix units: tiles of sums, through shared memory, to the output. */
#ifndef EVO_BACKENDS_GPU_KERNELS_OPM_TENSOR_OUTPUT_H
#define EVO_BACKENDS_GPU_KERNELS_OPM_TENSOR_OUTPUT_H

#include "backends/gpu/kernels/matrix.h"
#include "backends/gpu/kernels/opm/output.h"

/* A wave's own memory for what it writes at once: 16 pairs of 64 channels. */
static constexpr int OUT_COLUMNS = 64, OUT_PITCH = OUT_COLUMNS + 4, OUT_FLOATS = TILE_SIDE * OUT_PITCH;

/* What a lane needs of the four channels from `column` on, which it writes of every pair. */
struct channel_quad {
    int column;
    float scale[4], bias[4];

    EVO_METHOD void start(const gpu_opm_output &o, const float *z_scale, int first) {
        column = first + lane_number() % (OUT_COLUMNS / 4) * 4;
        EVO_UNROLL
        for (int e = 0; e < 4; e++) {
            scale[e] = column < o.c_z ? z_scale[column + e] : 1.0f;
            bias[e] = column < o.c_z ? o.bias[column + e] : 0.0f;
        }
    }
};

/*
 * Writes 16 pairs x 64 channels of a batch entry; `at(row, &i, &j, &n, &scale)` says which pair a row is, its normaliser and what its sums are
 * multiplied by beside the channels' scales, and false if there is no such pair.
 */
template <class PLACE>
EVO_DEVICE void write_tiles(const gpu_opm_output &o, int64_t batch, const sums (&z)[OUT_COLUMNS / TILE_SIDE],
                            const channel_quad &quad, float *memory, const PLACE &at) {
    constexpr int QUADS = OUT_COLUMNS / 4, AT_ONCE = WAVE / QUADS;
    static_assert(WAVE % QUADS == 0, "a lane keeps its channels");
    wave_barrier();
    EVO_UNROLL
    for (int t = 0; t < OUT_COLUMNS / TILE_SIDE; t++) EVO_UNROLL
    for (int e = 0; e < TILE_SUMS; e++) memory[tile_row(e) * OUT_PITCH + t * TILE_SIDE + tile_column(e)] = z[t].v[e];
    wave_barrier();
    if (quad.column >= o.c_z) return;
    for (int row = lane_number() / QUADS; row < TILE_SIDE; row += AT_ONCE) {
        int64_t i, j;
        float n, scale, x[4];
        if (!at(row, &i, &j, &n, &scale)) continue;
        unpack(*reinterpret_cast<const float4_t *>(memory + row * OUT_PITCH + lane_number() % QUADS * 4), x);
        const float by = 1.0f / n;
        EVO_UNROLL
        for (int e = 0; e < 4; e++) {
            const float sum = x[e] * quad.scale[e] * scale;
            x[e] = o.divide_after ? (sum + quad.bias[e]) * by : multiply_add(sum, by, quad.bias[e]);
        }
        add_residual(o, batch, i, j, quad.column, x);
        const int64_t *strides = o.out.strides;
        store_four(o.out, batch * strides[0] + i * strides[1] + j * strides[2] + quad.column * strides[3],
                   o.c_z - quad.column, x);
    }
}

#endif
