/*
 * hopper.h: what sm_90a has beside its threads: barriers in shared memory, bulk tensor copies, matrix units that work on
 * their own, registers that move between waves. simulated_hopper.h has the names that kernels use.
 *
 * Everything happens as late as PTX allows, or earlier, by chance:
 *   bulk loads     the target holds no data from the issue until somebody has waited for the barrier's phase; zeros for what
 *                  lies outside the tensor may land before reads of that place that were issued earlier, barriers between
 *                  them or not: the reading thread has to fence, or to use what it read
 *   bulk stores    read shared memory when their thread waits for that, write global memory when it waits for all
 *   products       read their operands, registers too, when their wave waits; until then the sums are NaNs
 * Shared memory has two sides: what threads see, and what copies and matrix units see (the async proxy). What a thread writes
 * reaches the other side when that thread fences; a copy or product that meets what was not fenced ends the launch.
 */
#ifndef EVO_TESTS_SIMULATED_HOPPER_H
#define EVO_TESTS_SIMULATED_HOPPER_H

#include <deque>
#include <map>

#include "engine.h"
#include "tensor_map.h"

namespace simulated {

constexpr unsigned most_columns = 256; /* of a product */

/** One matrix product of a wave's 16 rows, as its lanes bring it. */
struct product_lane {
    float *sums;       /* `count` of them */
    const uint32_t *a; /* four registers; nullptr: shared memory */
    uint64_t a_operand, b_operand;
    unsigned count;
    bool half, a_transposed, b_transposed, accumulate; /* half: fp16, else bf16 */
};

/** The sums of a wave's products that are under way. */
struct wave_sums {
    float *lanes[wave_lanes];
    unsigned count;
    size_t last_group;
    std::vector<float> values; /* [16][2 count] */
};

struct product {
    product_lane lanes[wave_lanes];
    size_t group;
    wave_sums *sums;
    site where;
};

struct matrix_wave {
    bool fenced = false;
    size_t groups = 0, issued = 0; /* closed groups; products ever */
    std::deque<product> queue;
    std::vector<std::unique_ptr<wave_sums>> sums;
};

/** Bytes on their way into shared memory. */
struct landing {
    uint32_t address;
    std::vector<unsigned char> bytes;
};

struct phase_barrier {
    bool fenced; /* its initialisation, for copies */
    thread *maker;
    int count, missing, bytes;
    unsigned phase;
    std::vector<thread *> waiting;
    std::vector<landing> coming;  /* what copies have brought in this phase */
    std::vector<landing> arrived; /* in phases that nobody has waited for yet */
};

struct bulk_load {
    uint32_t target, barrier;
    tensor_map map;
    int at[5];
    site where;
};

struct bulk_store {
    uint32_t source;
    tensor_map map;
    int at[5];
    site where;
    bool read, written;
    std::vector<unsigned char> bytes;
};

struct store_thread {
    size_t closed = 0;            /* groups */
    std::vector<size_t> group_of; /* of each store */
    std::vector<bulk_store> stores;
};

class hopper : public beside {
  public:
    /** That of the running engine. */
    static hopper &active_one();

    uint32_t address_of(const void *p);
    /** Where `bytes` of shared memory lie, aligned to `alignment`. */
    unsigned char *at(uint32_t address, uint32_t bytes, uint32_t alignment, const char *what);
    /** The running thread has written there. */
    void written(uint32_t address, uint32_t bytes);
    /** It reads 16 bytes there into registers, which have them when it fences, or when other instructions take them. */
    void reads(uint32_t address);
    void has_read();
    void fence();

    void barrier_init(uint32_t barrier, int count);
    void barrier_init_done();
    void barrier_arrive(uint32_t barrier, int bytes);
    void barrier_wait(uint32_t barrier, int parity, const site &where);

    void load(uint32_t target, const void *map, uint32_t barrier, unsigned rank, const int *coordinates,
              const site &where);
    void store(const void *map, uint32_t source, unsigned rank, const int *coordinates, const site &where);
    void store_commit();
    void store_wait(size_t groups_to_leave, bool written);

    void multiply(product_lane mine, const site &where);
    void products_begin(const site &where);
    void products_commit(const site &where);
    void products_wait(size_t groups_to_leave, const site &where);

    void set_registers(int wanted, bool more, const site &where);
    bool is_elected(const site &where);

    void begin_block() override;
    bool step() override;
    void thread_exchanges() override;
    void thread_returns() override;
    void block_ends() override;

  private:
    engine &own = *active;
    unsigned char *memory = nullptr; /* what threads see */
    uint32_t size = 0;
    std::vector<unsigned char> other_side;       /* what copies and matrix units see */
    std::vector<uint16_t> writer;                /* of each 8 bytes: 1 + the thread that has to fence them */
    std::vector<std::vector<uint32_t>> unfenced; /* of each thread, by number */
    std::vector<std::vector<uint32_t>> reading;  /* by each thread: where 16 bytes are on their way into registers */
    std::vector<bool> outside; /* of each 16 bytes of a load's target, whether some lie outside the tensor */
    std::map<uint32_t, phase_barrier> barriers;
    std::vector<bulk_load> loads;
    std::vector<store_thread> stores; /* of each thread */
    size_t stores_left = 0;           /* that have not written */
    std::vector<matrix_wave> waves;
    std::vector<std::vector<uint64_t>> agreed; /* what each warpgroup's waves multiply, in order */
    std::vector<int> registers;                /* of each thread */
    std::vector<thread *> wants_registers;
    int free_registers = 0;
    unsigned elected = 0;
    double right[16][most_columns]; /* of the product that is executed */

    void open_memory();
    phase_barrier &find_barrier(uint32_t barrier);
    void complete(phase_barrier &b);
    void deliver(size_t load);
    void expect_fenced(uint32_t address, uint32_t bytes, const char *what, const site &where);
    void expect_read(const bulk_load &l);
    void read_source(bulk_store &s);
    void write_target(bulk_store &s);
    bool step_store();
    const unsigned char *operand_chunk(uint64_t operand, bool transposed, unsigned index, unsigned k,
                                       const site &where);
    template <class SET>
    void read_operand(const product &p, uint64_t operand, bool transposed, unsigned first, unsigned rows, SET set);
    void execute(matrix_wave &w);
    void issue(void *const *lanes);
    void wait_for_products(size_t groups_to_leave);
    matrix_wave &own_wave();
};

} // namespace simulated

#endif
