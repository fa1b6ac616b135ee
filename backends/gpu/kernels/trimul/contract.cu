/* contract.cu: a product of two matrices per channel. */
#include "backends/gpu/kernels/tile.h"
#include "backends/gpu/kernels/trimul/params.h"

static constexpr int TILE = GPU_CONTRACT_TILE;

EVO_KERNEL(evo_trimul_contract, gpu_contract_params, GPU_THREADS, 1) {
    using operands_t = copied_operands<TILE, TILE>;
    EVO_SHARED(float, stages, operands_t::FLOATS);
    const int across = (p.pitch + TILE - 1) / TILE, block = static_cast<int>(block_x());
    const int first_row = block / across * TILE, first_column = block % across * TILE;
    const int copied = panel<TILE>::thread_column();
    const int64_t side = block_z() * p.side_batch + block_y() * p.side_channel;
    operands_t operands;
    operands.stages = stages;
    operands.a.start(p.a + side + first_row + copied, p.pitch, p.n, first_row + copied < (p.rows + 3) / 4 * 4);
    operands.b.start(p.b + side + first_column + copied, p.pitch, p.n, first_column + copied < p.pitch);
    float sum[8][8];
    clear(sum);
    multiply_operands<TILE, TILE>(operands, p.n, sum);

    const place at = thread_place<TILE, TILE>();
    float *t = p.t + block_z() * p.t_batch + block_y() * p.t_channel;
    EVO_UNROLL
    for (int r = 0; r < 8; r++) {
        const int row = first_row + at.row + r / 4 * 16 + r % 4;
        EVO_UNROLL
        for (int c = 0; c < 2; c++) {
            const int column = first_column + at.col + 32 * c;
            if (row < p.rows && column < p.pitch)
                *reinterpret_cast<float4_t *>(t + static_cast<int64_t>(row) * p.pitch + column) = {
                    sum[r][4 * c], sum[r][4 * c + 1], sum[r][4 * c + 2], sum[r][4 * c + 3]
                };
        }
    }
}
