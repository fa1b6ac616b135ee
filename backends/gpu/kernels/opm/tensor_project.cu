/*
 * tensor_project.cu: a and b of the outer product mean for matrix units. A block norms 64 positions (32 of four bytes a number) into shared memory, then
 * multiplies them by 64 channels at a time: rows of the product are channels, columns positions, since a and b lie
 * channel by channel. Its sums pass through shared memory, so that positions are written 16 bytes at a time.
 */
#include "backends/gpu/kernels/norm_rows.h"
#include "backends/gpu/kernels/opm/params.h"

static constexpr int CHANNELS = 64;
static_assert(GPU_BLOCK_WAVES == 4, "waves stand 2 x 2");

template <class T>
static constexpr int POSITIONS = T::BYTES == 4 ? GPU_OPM_TENSOR_POSITIONS / 2 : GPU_OPM_TENSOR_POSITIONS;
template <class T> static constexpr int ACROSS = POSITIONS<T> / 2 / TILE_SIDE;

/* A tile of results: rows are channels. */
template <class T> static constexpr int RESULT_PITCH = POSITIONS<T> * T::BYTES + 16;

/* Of the block's positions: the mask, and whether there is such a sequence; padding of S becomes zeros. */
struct position_facts {
    float mask[GPU_OPM_TENSOR_POSITIONS];
    int valid[GPU_OPM_TENSOR_POSITIONS];
};

/* Where the block's positions begin. A position's own place takes but a division of 32 bits. */
struct block_positions {
    int64_t first, i;
    int s, s_pad;

    EVO_METHOD void start(const gpu_opm_tensor_project_params &p, int64_t m) {
        first = m;
        s_pad = p.s_pad;
        i = m / s_pad;
        s = static_cast<int>(m - i * s_pad);
    }
    EVO_METHOD void locate(int row, int64_t *own_i, int *own_s) const {
        const uint32_t further = static_cast<uint32_t>(s + row), rows = further / static_cast<uint32_t>(s_pad);
        *own_i = i + rows;
        *own_s = static_cast<int>(further - rows * static_cast<uint32_t>(s_pad));
    }
    EVO_METHOD bool valid(const gpu_opm_tensor_project_params &p, int row, int own_s) const {
        return first + row < p.positions && own_s < p.s;
    }
};

/* Channels are a stage of W; the other operand, K-major too, stands whole in shared memory. */
struct weight_panel {
    static constexpr int BYTES = rows_panel<CHANNELS>::BYTES;
    rows_panel<CHANNELS> rows;

    EVO_METHOD void fetch(unsigned char *stage) {
        rows.fetch(stage);
    }
    EVO_METHOD void put(unsigned char *stage) {
        rows.put(stage);
    }
};

/* What a lane's sums are multiplied by and what is added: factor and bias of their channels. */
struct channel_facts {
    float factor[2][TILE_SUMS], bias[2][TILE_SUMS];

    EVO_METHOD void load(const float *table, int channel) {
        EVO_UNROLL
        for (int r = 0; r < 2; r++) EVO_UNROLL
        for (int e = 0; e < TILE_SUMS; e++) {
            const float4_t row = reinterpret_cast<const float4_t *>(table)[channel + r * TILE_SIDE + tile_row(e)];
            factor[r][e] = row.x;
            bias[r][e] = row.y;
        }
    }
};

/* factor * sum + bias, times mask and store, of the wave's 32 channels and half of the positions. */
template <class T>
EVO_DEVICE void finish_sums(const gpu_opm_tensor_project_params &p, int channel, int column, const channel_facts &own,
                            const position_facts *facts, unsigned char *results, sums (&sum)[2][ACROSS<T>]) {
    EVO_UNROLL
    for (int r = 0; r < 2; r++) EVO_UNROLL
    for (int c = 0; c < ACROSS<T>; c++) {
        EVO_UNROLL
        for (int e = 0; e < TILE_SUMS; e++) {
            const int row = channel + r * TILE_SIDE + tile_row(e), at = column + c * TILE_SIDE + tile_column(e);
            float y = multiply_add(sum[r][c].v[e], own.factor[r][e], own.bias[r][e]) * p.store;
            if (row < p.c || p.mask_b) y *= facts->mask[at];
            sum[r][c].v[e] = facts->valid[at] ? y : 0.0f;
        }
        store_tile_as<T>(sum[r][c],
                         results + (channel % CHANNELS + r * TILE_SIDE) * RESULT_PITCH<T> +
                             (column + c * TILE_SIDE) * T::BYTES,
                         RESULT_PITCH<T>);
    }
}

/* Rows of results to their sides: a thread has the same positions of some channels, 16 bytes each. Positions that are padding of S are zeros. */
template <class T>
EVO_DEVICE void write_results(const gpu_opm_tensor_project_params &p, const block_positions &at, int channel,
                              const unsigned char *results) {
    constexpr int EACH = 16 / T::BYTES, PIECES = POSITIONS<T> / EACH, AT_ONCE = THREADS / PIECES;
    static_assert(THREADS % PIECES == 0 && CHANNELS % AT_ONCE == 0, "whole rounds");
    const int row = thread_x() % PIECES * EACH;
    int64_t i;
    int s;
    at.locate(row, &i, &s);
    if (at.first + row >= p.positions) return;
    EVO_UNROLL
    for (int n = 0; n < CHANNELS / AT_ONCE; n++) {
        const int line = thread_x() / PIECES + n * AT_ONCE, own = channel + line, side = own < p.c ? 0 : 1,
                  within = own - side * p.c;
        if (own < p.first_channel || own >= p.last_channel) continue;
        unsigned char *target = static_cast<unsigned char *>(p.target[side]) +
                                (block_z() * p.target_batch[side] + within * p.channel_stride[side] +
                                 i * p.row_stride[side] + s * p.s_stride[side]) *
                                    T::BYTES;
        const unsigned char *from = results + line * RESULT_PITCH<T> + thread_x() % PIECES * 16;
        if (p.s_stride[side] == 1) {
            *reinterpret_cast<float4_t *>(target) = *reinterpret_cast<const float4_t *>(from);
            continue;
        }
        if constexpr (!IS_SPLIT<T>) { /* those only lie with s side by side */
            const int pad = within + 1 == p.c ? p.pad : 0;
            EVO_NO_UNROLL
            for (int e = 0; e < EACH; e++)
                for (int z = 0; z <= pad; z++)
                    reinterpret_cast<uint16_t *>(target)[e * p.s_stride[side] + z] =
                        z ? 0 : reinterpret_cast<const uint16_t *>(from)[e];
        }
    }
}

/* The first stages of W are asked for ahead of the rows of m, and the masks with them: a block is short, so what it waits for counts. */
template <class T, int OCTETS> EVO_DEVICE void project(const gpu_opm_tensor_project_params &p, unsigned char *shared) {
    constexpr int STAGES = 2;
    static_assert(POSITIONS<T> <= THREADS, "a thread has a position's mask");
    const int64_t batch = p.batch_begin + block_z();
    const int pitch = p.depth * T::BYTES + 16, steps = p.depth * T::BYTES / CHUNK;
    position_facts *const facts = reinterpret_cast<position_facts *>(shared);
    unsigned char *const rows = shared + sizeof(position_facts), *const ring = rows + POSITIONS<T> * pitch;
    const stage_walk<STAGES, weight_panel> walk = { ring, steps };
    weight_panel panel;
    const auto start_panel = [&](int channel) {
        panel.rows.start(static_cast<const unsigned char *>(p.weight) +
                             static_cast<int64_t>(channel) * p.depth * T::BYTES,
                         static_cast<int64_t>(p.depth) * T::BYTES, CHANNELS, p.depth * T::BYTES);
        walk.begin(panel);
    };
    const int first_channel = p.first_channel / CHANNELS * CHANNELS;
    start_panel(first_channel);
    block_positions at;
    at.start(p, static_cast<int64_t>(block_x()) * POSITIONS<T>);
    const auto offset_of = [&](const gpu_tensor &t, int row, int64_t *offset) {
        int64_t i;
        int s;
        at.locate(row, &i, &s);
        *offset = batch * t.strides[0] + s * t.strides[1] + (p.inner_begin + i) * t.strides[2];
        return at.valid(p, row, s);
    };
    int64_t mask_offset = 0, residue;
    int sequence;
    at.locate(thread_x(), &residue, &sequence);
    const bool valid = thread_x() < POSITIONS<T> && offset_of(p.mask, thread_x(), &mask_offset);
    float mask = valid ? load_mask(p.mask, mask_offset) : 0.0f;
    if (valid && p.mask_exponents) mask *= power_of_two(-p.mask_exponents[block_z() * p.n + residue]);
    const norm_task task = { &p.source, p.norm, p.c_m, p.depth, false, p.eps };
    norm_rows<T, POSITIONS<T>, OCTETS>(
        task, [&](int row, int64_t *offset) { return offset_of(p.source, row, offset); }, rows, pitch, nullptr);
    if (thread_x() < POSITIONS<T>) {
        facts->mask[thread_x()] = mask;
        facts->valid[thread_x()] = valid;
    }
    const int wave = thread_x() / WAVE, own_row = wave / 2 * 32, own_column = wave % 2 * (POSITIONS<T> / 2);
    const unsigned char *const y = rows + own_column * pitch + right_lane_offset(pitch);
    for (int channel = first_channel; channel < p.last_channel; channel += CHANNELS) {
        sums sum[2][ACROSS<T>];
        channel_facts own;
        clear(sum);
        if (channel > first_channel) start_panel(channel);
        own.load(p.table, channel + own_row);
        const unsigned char *next = y;
        walk.run(panel, [&](const unsigned char *stage) {
            multiply_stage<T>(stage + own_row * STAGE_PITCH + lane_offset(STAGE_PITCH), STAGE_PITCH, next, pitch, sum);
            next += CHUNK;
        });
        block_barrier();
        finish_sums<T>(p, channel + own_row, own_column, own, facts, ring, sum);
        block_barrier();
        write_results<T>(p, at, channel, ring);
        block_barrier();
    }
}

#define EVO_PROJECT(name, T, octets, blocks)                                                                                  \
    EVO_KERNEL(name, gpu_opm_tensor_project_params, GPU_BLOCK_WAVES *WAVE, blocks) {                                       \
        EVO_DYNAMIC_SHARED(shared);                                                                                   \
        project<T, octets>(p, shared);                                                                                \
    }
EVO_PROJECT(evo_opm_tensor_project_bf16_64, bfloat_t, 1, 4)
EVO_PROJECT(evo_opm_tensor_project_bf16_256, bfloat_t, 4, 4)
EVO_PROJECT(evo_opm_tensor_project_bf16_384, bfloat_t, 6, 3)
EVO_PROJECT(evo_opm_tensor_project_fp16_64, half_t, 1, 4)
EVO_PROJECT(evo_opm_tensor_project_fp16_256, half_t, 4, 4)
EVO_PROJECT(evo_opm_tensor_project_fp16_384, half_t, 6, 3)
EVO_PROJECT(evo_opm_tensor_project_split_64, split_t, 1, 4)
EVO_PROJECT(evo_opm_tensor_project_split_256, split_t, 4, 3)
EVO_PROJECT(evo_opm_tensor_project_split_384, split_t, 6, 3)
