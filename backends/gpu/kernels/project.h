/*
 * project.h: the first pass of both ops. A block takes 128 positions: LayerNorm's statistics first, then the product of the
 * normed positions with 64 columns of the weights at a time (and with their gates, if GATED), bias, gate and mask in the
 * epilogue. Results are written in quads of four positions.
 */
#ifndef EVO_BACKENDS_GPU_KERNELS_PROJECT_H
#define EVO_BACKENDS_GPU_KERNELS_PROJECT_H

#include "backends/gpu/kernels/layer_norm.h"

/* Where a thread can hold fewer sums than 8 rows have, the block takes its positions in two steps. */
template <bool GATED> static constexpr int PROJECT_THREAD_ROWS = (GATED && SUMS < 64) ? 4 : 8;

/* A tile of gated columns is 2 x 64 wide, proj and gate in turn by 32, so that a thread owns both of a channel. */
template <bool GATED>
using project_tile = tile<16 * PROJECT_THREAD_ROWS<GATED>, (GATED ? 2 : 1) * GPU_PROJECT_COLUMNS,
                          PROJECT_THREAD_ROWS<GATED>, (GATED ? 2 : 1) * GPU_PROJECT_COLUMNS / 16, GPU_STAGE_DEPTH, 4>;

template <bool GATED> using project_operands = staged_operands<project_tile<GATED>, normed_rows<project_tile<GATED>>>;

struct project_shared {
    float *a_stages, *b_stages;
    statistics<GPU_PROJECT_ROWS> *normed;
    float *mask;
};

/* The offsets of position m in the source and the mask; false for padding. */
EVO_DEVICE bool locate(const gpu_project_params &p, int64_t m, int64_t *offset, int64_t *mask_offset) {
    const int64_t outer = m / p.inner_padded, inner = m - outer * p.inner_padded;
    const int64_t batch = p.batch_begin + block_z(), index = p.inner_begin + inner;
    *offset = batch * p.source.strides[0] + outer * p.source.strides[1] + index * p.source.strides[2];
    *mask_offset = batch * p.mask.strides[0] + outer * p.mask.strides[1] + index * p.mask.strides[2];
    return m < p.positions && inner < p.inner_count;
}

EVO_DEVICE void measure_positions(const gpu_project_params &p, int64_t first, const project_shared &s) {
    for (int row = thread_x() / 8; row < GPU_PROJECT_ROWS; row += GPU_THREADS / 8) {
        int64_t offset, mask_offset;
        const bool valid = locate(p, first + row, &offset, &mask_offset);
        float mean, rest, scale;
        position_statistics(p.source, offset, valid ? p.channels : 0, p.eps, &mean, &rest, &scale);
        if (thread_x() % 8 == 0) {
            s.normed->mean[row] = valid ? mean : 0.0f;
            s.normed->rest[row] = valid ? rest : 0.0f;
            s.normed->scale[row] = valid ? scale : 0.0f;
            s.mask[row] = valid ? load_mask(p.mask, mask_offset) : 0.0f;
        }
    }
    block_barrier();
}

/* This thread's columns of the weights: logical column `column` and whether it is one. */
template <bool GATED>
EVO_DEVICE void start_weights(const gpu_project_params &p, int first_column, panel_b<project_tile<GATED>> &b) {
    const int at = panel_b<project_tile<GATED>>::thread_column();
    const int column = first_column + (GATED ? at / 64 * 32 + at % 32 : at);
    const bool gate = GATED && at % 64 >= 32;
    const int packed = column < p.group ? p.group_begin + column : p.width + p.group_begin + column - p.group;
    b.start((gate ? p.gate_weight : p.weight) + packed, 2 * p.width, p.channels, column < p.column_end);
}

/* Writes four channels from logical column `column` on, for the thread's rows. */
template <bool GATED>
EVO_DEVICE void write_columns(const gpu_project_params &p, int64_t first, const place &at, int column,
                              const float (&sum)[project_tile<GATED>::THREAD_ROWS][project_tile<GATED>::THREAD_COLS],
                              const float *mask) {
    const int side = column < p.group ? 0 : 1, channel = column - side * p.group;
    const int packed = side * p.width + p.group_begin + channel;
    float *target = p.target[side] + block_z() * p.target_batch[side] + channel * p.channel_stride;
    const bool masked = side == 0 || p.mask_b;
    EVO_UNROLL
    for (int q = 0; q < project_tile<GATED>::THREAD_ROWS / 4; q++) {
        const int row = at.row + 16 * q;
        if (first + row >= p.positions) continue;
        EVO_UNROLL
        for (int c = 0; c < 4; c++) {
            const float bias = p.bias[packed + c], gate_bias = GATED ? p.gate_bias[packed + c] : 0.0f;
            float y[4];
            EVO_UNROLL
            for (int e = 0; e < 4; e++) {
                y[e] = sum[4 * q + e][c] + bias;
                if (masked) y[e] *= mask[row + e];
                if (GATED) y[e] *= sigmoid(sum[4 * q + e][c + 4] + gate_bias);
            }
            *reinterpret_cast<float4_t *>(target + (first + row) * p.position_stride +
                                          c * p.channel_stride) = { y[0], y[1], y[2], y[3] };
        }
    }
}

/* The products of a tile's positions, the block's from `tile_row` on. */
template <bool GATED>
EVO_DEVICE void project_tile_rows(const gpu_project_params &p, int64_t block, int tile_row, const project_shared &s) {
    using tile_t = project_tile<GATED>;
    const int64_t first = block + tile_row;
    const int row = normed_rows<tile_t>::thread_row();
    normed_rows<tile_t> a;
    int64_t mask_offset;
    a.tensor = &p.source;
    a.valid = locate(p, first + row, &a.offset, &mask_offset);
    a.channels = p.channels;
    a.weight = p.norm_weight;
    a.bias = p.norm_bias;
    a.mean = s.normed->mean[tile_row + row];
    a.rest = s.normed->rest[tile_row + row];
    a.scale = s.normed->scale[tile_row + row];

    const place at = thread_place<tile_t>();
    project_operands<GATED> operands;
    operands.source = &a;
    operands.a_stages = s.a_stages;
    operands.b_stages = s.b_stages;
    const int begin = p.column_begin + static_cast<int>(block_y()) * p.columns_per_block;
    const int end = begin + p.columns_per_block < p.column_end ? begin + p.columns_per_block : p.column_end;
    for (int column = begin; column < end; column += GPU_PROJECT_COLUMNS) {
        float sum[tile_t::THREAD_ROWS][tile_t::THREAD_COLS];
        start_weights<GATED>(p, column, operands.b);
        clear(sum);
        multiply_operands<tile_t>(operands, p.channels, sum);
        const int own = column + (GATED ? at.col / 64 * 32 + at.col % 32 : at.col);
        if (own < p.column_end) write_columns<GATED>(p, first, at, own, sum, s.mask + tile_row);
        block_barrier();
    }
}

template <bool GATED> EVO_DEVICE void project(const gpu_project_params &p, const project_shared &s) {
    const int64_t first = static_cast<int64_t>(block_x()) * GPU_PROJECT_ROWS;
    measure_positions(p, first, s);
    for (int row = 0; row < GPU_PROJECT_ROWS; row += project_tile<GATED>::ROWS)
        project_tile_rows<GATED>(p, first, row, s);
}

#endif
