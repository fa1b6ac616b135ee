/* hopper.cpp: see hopper.h. Layouts are those of the PTX ISA: "Tensors", "wgmma". */
#include "hopper.h"

#include <algorithm>

#include "simulated_device.h"

namespace simulated {

constexpr uint32_t window = 1024;    /* address of the block's dynamic shared memory */
constexpr uint32_t granule = 8;      /* bytes that are fenced together */
constexpr int most_bytes = 1 << 20;  /* that a barrier's phase can wait for */
constexpr int all_registers = 65536; /* of a multiprocessor, all of which one block has */

hopper &hopper::active_one() {
    if (!active->other) {
        active->other.reset(new hopper());
        active->other->begin_block();
    }
    return static_cast<hopper &>(*active->other);
}

void hopper::begin_block() {
    const unsigned threads = own.thread_count();
    memory = static_cast<unsigned char *>(own.shared_array(nullptr, 0));
    size = static_cast<uint32_t>(own.work->shared_size);
    other_side.assign(size, unwritten);
    writer.assign(size / granule + 1, 0);
    unfenced.assign(threads, {});
    reading.assign(threads, {});
    barriers.clear();
    loads.clear();
    stores.assign(threads, {});
    stores_left = 0;
    waves = std::vector<matrix_wave>((threads + wave_lanes - 1) / wave_lanes);
    agreed.assign(waves.size() / 4 + 1, {});
    const int each = all_registers / static_cast<int>(threads) / 8 * 8;
    registers.assign(threads, each < 255 ? each : 255);
    wants_registers.clear();
    free_registers = 0;
    elected = static_cast<unsigned>(own.random() % wave_lanes);
}

/* Something that is under way, drawn: a copy into shared memory, one out of it, a product. */
bool hopper::step() {
    const uint64_t drawn = own.random();
    for (unsigned turn = 0; turn < 3; turn++) switch ((drawn + turn) % 3) {
        case 0:
            if (loads.empty()) break;
            deliver(drawn / 3 % loads.size());
            return true;
        case 1:
            if (stores_left && step_store()) return true;
            break;
        default:
            for (size_t i = 0; i < waves.size(); i++) {
                matrix_wave &w = waves[(drawn / 3 + i) % waves.size()];
                if (w.queue.empty()) continue;
                execute(w);
                return true;
            }
        }
    return false;
}

void hopper::thread_exchanges() {
    has_read();
}

void hopper::thread_returns() {
    const thread &self = *own.running;
    for (const bulk_store &s : stores[own.number_of(self)].stores)
        if (!s.read) own.fail("returns before the bulk store of %s:%d has read", s.where.file, s.where.line);
    if (!waves[self.wave].sums.empty()) own.fail("returns before its products are done");
}

void hopper::block_ends() {
    if (!loads.empty())
        own.fail("the block ends before the bulk load of %s:%d has arrived", loads[0].where.file, loads[0].where.line);
    for (const auto &entry : barriers)
        if (entry.second.bytes)
            own.fail("the block ends with a barrier at %u that misses %d bytes", entry.first, entry.second.bytes);
    while (stores_left) step_store();
}

/* --- Shared memory --- */

uint32_t hopper::address_of(const void *p) {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - reinterpret_cast<uintptr_t>(memory);
    if (offset > size) own.fail("the shared address of what is not in dynamic shared memory");
    return window + static_cast<uint32_t>(offset);
}

unsigned char *hopper::at(uint32_t address, uint32_t bytes, uint32_t alignment, const char *what) {
    if (address % alignment) own.fail("%s at %u: misaligned, expected a multiple of %u", what, address, alignment);
    if (address < window || address - window > size || bytes > size - (address - window))
        own.fail("%s of %u bytes at %u: outside of shared memory, which ends at %u", what, bytes, address,
                 window + size);
    return memory + (address - window);
}

void hopper::written(uint32_t address, uint32_t bytes) {
    const unsigned self = own.number_of(*own.running);
    for (uint32_t g = (address - window) / granule; g * granule < address - window + bytes; g++) {
        if (writer[g] != self + 1) unfenced[self].push_back(g);
        writer[g] = static_cast<uint16_t>(self + 1);
    }
}

void hopper::reads(uint32_t address) {
    reading[own.number_of(*own.running)].push_back(address);
}

void hopper::has_read() {
    reading[own.number_of(*own.running)].clear();
}

void hopper::fence() {
    const unsigned self = own.number_of(*own.running);
    has_read();
    for (const uint32_t g : unfenced[self]) {
        if (writer[g] != self + 1) continue;
        const uint32_t first = g * granule, bytes = size - first < granule ? size - first : granule;
        memcpy(&other_side[first], memory + first, bytes);
        writer[g] = 0;
    }
    unfenced[self].clear();
}

void hopper::expect_fenced(uint32_t address, uint32_t bytes, const char *what, const site &where) {
    const uint32_t first = address - window;
    for (uint32_t g = first / granule; g * granule < first + bytes; g++)
        if (writer[g])
            own.fail("the %s of %s:%d meets shared memory at %u that thread %d has written and not fenced", what,
                     where.file, where.line, window + g * granule, writer[g] - 1);
    if (memcmp(memory + first, &other_side[first], bytes) != 0)
        own.fail("the %s of %s:%d meets shared memory at %u that was written by plain stores, see write_shared()", what,
                 where.file, where.line, address);
}

/* --- Barriers --- */

phase_barrier &hopper::find_barrier(uint32_t barrier) {
    const auto found = barriers.find(barrier);
    if (found == barriers.end()) own.fail("no barrier was made at %u", barrier);
    return found->second;
}

void hopper::barrier_init(uint32_t barrier, int count) {
    at(barrier, 8, 8, "barrier");
    if (count < 1 || count >= most_bytes) own.fail("a barrier of %d arrivals", count);
    if (barriers.count(barrier)) own.fail("a barrier at %u is made twice", barrier);
    phase_barrier made = {};
    made.maker = own.running;
    made.count = made.missing = count;
    barriers[barrier] = made;
}

void hopper::barrier_init_done() {
    for (auto &entry : barriers) entry.second.fenced = entry.second.fenced || entry.second.maker == own.running;
}

void hopper::complete(phase_barrier &b) {
    if (b.missing || b.bytes) return;
    b.phase++;
    b.missing = b.count;
    for (landing &l : b.coming) b.arrived.push_back(std::move(l));
    b.coming.clear();
    for (thread *t : b.waiting) own.wake(*t);
    b.waiting.clear();
}

void hopper::barrier_arrive(uint32_t barrier, int bytes) {
    phase_barrier &b = find_barrier(barrier);
    if (!b.missing) own.fail("more than the %d arrivals of the barrier at %u", b.count, barrier);
    if (bytes < 0 || b.bytes + bytes >= most_bytes) own.fail("%d bytes are too many for a barrier", bytes);
    b.bytes += bytes;
    b.missing--;
    complete(b);
    if (own.random() % 4 == 0) own.yield();
}

void hopper::barrier_wait(uint32_t barrier, int parity, const site &where) {
    phase_barrier &b = find_barrier(barrier);
    if (parity != 0 && parity != 1) own.fail("a wait for parity %d", parity);
    while ((b.phase & 1) == static_cast<unsigned>(parity)) {
        b.waiting.push_back(own.running);
        own.suspend(where);
    }
    for (const landing &l : b.arrived) {
        memcpy(at(l.address, 1, 1, "bulk load"), l.bytes.data(), l.bytes.size());
        memcpy(&other_side[l.address - window], l.bytes.data(), l.bytes.size());
    }
    b.arrived.clear();
}

/* --- Bulk copies --- */

static uint32_t rows_of(const tensor_map &map) {
    uint32_t rows = 1;
    for (unsigned d = 1; d < map.rank; d++) rows *= map.box[d];
    return rows;
}

/* Calls part(begin, end, address) with the numbers of each row of a box that lie in the tensor, if any. */
template <class PART> static void for_rows(const tensor_map &map, const int *at, PART part) {
    for (uint32_t row = 0; row < rows_of(map); row++) {
        const int64_t width = static_cast<int64_t>(map.extents[0]) - at[0];
        int64_t begin = at[0] < 0 ? -static_cast<int64_t>(at[0]) : 0, end = width < map.box[0] ? width : map.box[0];
        int64_t offset = 2 * static_cast<int64_t>(at[0]);
        for (uint32_t d = 1, rest = row; d < map.rank; rest /= map.box[d], d++) {
            const int64_t index = static_cast<int64_t>(at[d]) + rest % map.box[d];
            if (index < 0 || index >= static_cast<int64_t>(map.extents[d])) end = begin;
            offset += index * static_cast<int64_t>(map.strides[d - 1]);
        }
        if (begin < end) part(row, begin, end, reinterpret_cast<uint16_t *>(map.address + offset + 2 * begin));
    }
}

/* Where number i of a box's row lies: chunks of 16 bytes are swizzled by bits 7 to 9 of their address. */
static uint32_t swizzled_place(uint32_t base, uint32_t row, int64_t i) {
    const uint32_t plain = base + row * 128 + static_cast<uint32_t>(i) * 2;
    return plain ^ (plain >> 7 & 7) << 4;
}

/* A copy's own view of the map, which lies among the kernel's parameters. */
static tensor_map read_map(engine &own, const void *map, unsigned rank, const int *at) {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(map) - reinterpret_cast<uintptr_t>(own.work->params);
    tensor_map read;
    if (offset >= own.work->function->params_size || offset % 64)
        own.fail("a tensor map that is no parameter, or misaligned");
    memcpy(&read, map, sizeof read);
    if (read.magic != tensor_map::MAGIC) own.fail("a bulk copy by what is no tensor map");
    if (read.rank != rank) own.fail("a bulk copy with %u coordinates, the tensor has %u", rank, read.rank);
    if (at[0] * 2 % 16) own.fail("a bulk copy from number %d of a row, expected whole 16 bytes", at[0]);
    return read;
}

/* Zeros from outside the tensor need no memory to answer, and do not wait for registers that are being loaded. */
void hopper::expect_read(const bulk_load &l) {
    const uint32_t chunks = rows_of(l.map) * 8;
    outside.assign(chunks, true);
    for_rows(l.map, l.at, [&](uint32_t row, int64_t begin, int64_t end, const uint16_t *) {
        for (int64_t i = (begin + 7) / 8 * 8; i + 8 <= end; i += 8)
            outside[(swizzled_place(l.target, row, i) - l.target) / 16] = false;
    });
    for (size_t t = 0; t < reading.size(); t++)
        for (const uint32_t address : reading[t])
            if (address >= l.target && (address - l.target) / 16 < chunks && outside[(address - l.target) / 16])
                own.fail("zeros of the bulk load of %s:%d may land at %u before thread %zu has read what was there",
                         l.where.file, l.where.line, address, t);
}

/* Until a wait sees the bytes, their place holds nothing. */
void hopper::load(uint32_t target, const void *map, uint32_t barrier, unsigned rank, const int *coordinates,
                  const site &where) {
    bulk_load made = { target, barrier, read_map(own, map, rank, coordinates), {}, where };
    const uint32_t bytes = rows_of(made.map) * 128;
    memcpy(made.at, coordinates, rank * sizeof *coordinates);
    unsigned char *place = at(target, bytes, 128, "bulk load");
    if (!find_barrier(barrier).fenced) own.fail("a bulk load with a barrier whose initialisation was not fenced");
    expect_fenced(target, bytes, "bulk load", where);
    expect_read(made);
    memset(place, unwritten, bytes);
    memset(&other_side[target - window], unwritten, bytes);
    loads.push_back(made);
    if (own.random() % 4 == 0) own.yield();
}

void hopper::deliver(size_t which) {
    const bulk_load l = loads[which];
    landing brought = { l.target, std::vector<unsigned char>(rows_of(l.map) * 128, 0) };
    loads.erase(loads.begin() + static_cast<long>(which));
    for_rows(l.map, l.at, [&](uint32_t row, int64_t begin, int64_t end, const uint16_t *numbers) {
        uint16_t part[64];
        memcpy(part, numbers, static_cast<size_t>(end - begin) * 2); /* which AddressSanitizer checks, here and below */
        for (int64_t i = begin; i < end; i++)
            memcpy(&brought.bytes[swizzled_place(l.target, row, i) - l.target], &part[i - begin], 2);
    });
    phase_barrier &b = find_barrier(l.barrier);
    b.bytes -= static_cast<int>(brought.bytes.size());
    b.coming.push_back(std::move(brought));
    complete(b);
}

void hopper::store(const void *map, uint32_t source, unsigned rank, const int *coordinates, const site &where) {
    bulk_store made = { source, read_map(own, map, rank, coordinates), {}, where, false, false, {} };
    memcpy(made.at, coordinates, rank * sizeof *coordinates);
    for (unsigned d = 0; d < rank; d++)
        if (made.at[d] < 0) own.fail("a bulk store to coordinate %d", made.at[d]);
    at(source, rows_of(made.map) * 128, 128, "bulk store");
    expect_fenced(source, rows_of(made.map) * 128, "bulk store", where);
    store_thread &mine = stores[own.number_of(*own.running)];
    mine.stores.push_back(std::move(made));
    mine.group_of.push_back(mine.closed);
    stores_left++;
    if (own.random() % 4 == 0) own.yield();
}

void hopper::store_commit() {
    stores[own.number_of(*own.running)].closed++;
}

void hopper::read_source(bulk_store &s) {
    const uint32_t bytes = rows_of(s.map) * 128;
    expect_fenced(s.source, bytes, "bulk store", s.where);
    s.bytes.assign(&other_side[s.source - window], &other_side[s.source - window] + bytes);
    s.read = true;
}

void hopper::write_target(bulk_store &s) {
    for_rows(s.map, s.at, [&](uint32_t row, int64_t begin, int64_t end, uint16_t *numbers) {
        uint16_t part[64];
        for (int64_t i = begin; i < end; i++)
            memcpy(&part[i - begin], &s.bytes[swizzled_place(s.source, row, i) - s.source], 2);
        memcpy(numbers, part, static_cast<size_t>(end - begin) * 2);
    });
    s.written = true;
    s.bytes.clear();
    stores_left--;
}

/* One step of a store that is drawn. */
bool hopper::step_store() {
    const size_t first = static_cast<size_t>(own.random());
    for (size_t i = 0; i < stores.size(); i++) {
        std::vector<bulk_store> &all = stores[(first + i) % stores.size()].stores;
        for (size_t j = 0; j < all.size(); j++) {
            bulk_store &s = all[(first / 7 + j) % all.size()];
            if (s.written) continue;
            s.read ? write_target(s) : read_source(s);
            return true;
        }
    }
    return false;
}

void hopper::store_wait(size_t groups_to_leave, bool written) {
    store_thread &mine = stores[own.number_of(*own.running)];
    bool all = true;
    for (size_t i = 0; i < mine.stores.size(); i++) {
        bulk_store &s = mine.stores[i];
        if (mine.group_of[i] + groups_to_leave < mine.closed) {
            if (!s.read) read_source(s);
            if (written && !s.written) write_target(s);
        }
        all = all && s.written;
    }
    if (all) {
        mine.stores.clear();
        mine.group_of.clear();
    }
    if (own.random() % 4 == 0) own.yield();
}

/* --- Matrix units --- */

matrix_wave &hopper::own_wave() {
    return waves[own.running->wave];
}

void hopper::products_begin(const site &where) {
    own.meet_wave_to(nullptr, where, [](void *const *) { active_one().own_wave().fenced = true; });
}

/* Registers may be read and written between groups, so each group wants a fence of its own. */
void hopper::products_commit(const site &where) {
    own.meet_wave_to(nullptr, where, [](void *const *) {
        active_one().own_wave().fenced = false;
        active_one().own_wave().groups++;
    });
}

void hopper::products_wait(size_t groups_to_leave, const site &where) {
    own.meet_wave_to(&groups_to_leave, where,
                     [](void *const *lanes) { active_one().wait_for_products(*static_cast<size_t *>(lanes[0])); });
}

void hopper::multiply(product_lane mine, const site &where) {
    if (mine.a) has_read();
    own.meet_wave_to(&mine, where, [](void *const *lanes) { active_one().issue(lanes); });
}

void hopper::wait_for_products(size_t groups_to_leave) {
    matrix_wave &w = own_wave();
    const size_t done = w.groups > groups_to_leave ? w.groups - groups_to_leave : 0;
    while (!w.queue.empty() && w.queue.front().group < done) execute(w);
    for (size_t i = w.sums.size(); i-- > 0;) {
        const wave_sums &s = *w.sums[i];
        if (s.last_group >= done) continue;
        for (unsigned row = 0; row < 16; row++)
            for (unsigned column = 0; column < 2 * s.count; column++)
                s.lanes[row % 8 * 4 + column % 8 / 2][column / 8 * 4 + row / 8 * 2 + column % 2] =
                    s.values[row * 2 * s.count + column];
        w.sums.erase(w.sums.begin() + static_cast<long>(i));
    }
}

/* Lane l holds in sums[4 j + 2 h + e] row l / 4 + 8 h of its wave's 16, column 8 j + l % 4 * 2 + e. */
static void take_sums(wave_sums &s, bool accumulate) {
    s.values.assign(16 * 2 * s.count, 0.0f);
    for (unsigned row = 0; row < 16; row++)
        for (unsigned column = 0; column < 2 * s.count; column++) {
            float &sum = s.lanes[row % 8 * 4 + column % 8 / 2][column / 8 * 4 + row / 8 * 2 + column % 2];
            if (accumulate) s.values[row * 2 * s.count + column] = sum;
            memset(&sum, unwritten, sizeof sum);
        }
}

/* In the last lane to come. The waves of a warpgroup must multiply the same things, but need not be in step. */
void hopper::issue(void *const *lanes) {
    matrix_wave &w = own_wave();
    product p = { {}, w.groups, nullptr, own.running->where };
    for (unsigned l = 0; l < wave_lanes; l++) {
        p.lanes[l] = *static_cast<const product_lane *>(lanes[l]);
        if (p.lanes[l].b_operand != p.lanes[0].b_operand || p.lanes[l].accumulate != p.lanes[0].accumulate ||
            (!p.lanes[0].a && p.lanes[l].a_operand != p.lanes[0].a_operand))
            own.fail("lanes of a wave multiply different operands");
    }
    const product_lane &first = p.lanes[0];
    if (!w.fenced) own.fail("a product without products_begin() in its group");
    if (own.running->wave / 4 * 4 + 4 > waves.size()) own.fail("a product of less than four waves");

    std::vector<uint64_t> &sequence = agreed[own.running->wave / 4];
    const uint64_t word = (first.a ? 0 : first.a_operand * 31) + first.b_operand * 37 + first.count * 8u +
                          first.a_transposed * 4u + first.b_transposed * 2u + first.accumulate;
    if (w.issued == sequence.size()) sequence.push_back(word);
    if (sequence[w.issued++] != word) own.fail("waves of a warpgroup multiply different things");

    for (auto &s : w.sums)
        if (s->lanes[0] == first.sums) p.sums = s.get();
    if (!p.sums) {
        w.sums.emplace_back(new wave_sums());
        p.sums = w.sums.back().get();
        p.sums->count = first.count;
        for (unsigned l = 0; l < wave_lanes; l++) p.sums->lanes[l] = p.lanes[l].sums;
        take_sums(*p.sums, first.accumulate);
    }
    if (p.sums->count != first.count) own.fail("products of two widths on the same sums");
    p.sums->last_group = w.groups;
    w.queue.push_back(p);
}

/*
 * 16 bytes of an operand: 8 k from `k` on of row or column `index`, or transposed 8 of these from `index` on at k. An operand
 * says where it starts, the bytes from 8 rows to the next (rows lie together), or from 8 k to the next if transposed, and a
 * leading offset: from 8 k to the next without swizzle, from 64 rows to the next if transposed and swizzled.
 */
const unsigned char *hopper::operand_chunk(uint64_t operand, bool transposed, unsigned index, unsigned k,
                                           const site &where) {
    const uint32_t start = static_cast<uint32_t>(operand & 0x3fff) << 4,
                   leading = static_cast<uint32_t>(operand >> 16 & 0x3fff) << 4,
                   stride = static_cast<uint32_t>(operand >> 32 & 0x3fff) << 4;
    const unsigned swizzle = static_cast<unsigned>(operand >> 62), base_offset = operand >> 49 & 7;
    uint32_t address = start;
    if (swizzle > 1 || base_offset) own.fail("an operand with swizzle %u, base offset %u", swizzle, base_offset);
    if (swizzle && transposed)
        address += index / 64 * leading + index % 64 * 2 + k / 8 * stride + k % 8 * 128;
    else if (swizzle)
        address += index / 8 * stride + index % 8 * 128 + k * 2;
    else if (transposed)
        address += index / 8 * stride + k / 8 * leading + k % 8 * 16;
    else
        address += index / 8 * stride + index % 8 * 16 + k / 8 * leading;
    if (swizzle) address ^= (address >> 7 & 7) << 4;
    at(address, 16, 16, "operand");
    expect_fenced(address, 16, "product", where);
    return &other_side[address - window];
}

static inline float number_of(const unsigned char *bytes, bool half) {
    uint16_t bits;
    memcpy(&bits, bytes, sizeof bits);
    return half ? halves.of[bits] : bits_float(static_cast<uint32_t>(bits) << 16);
}

/* Calls set(row, k, number) with rows first ... first + rows - 1 of an operand, counted from 0. */
template <class SET>
void hopper::read_operand(const product &p, uint64_t operand, bool transposed, unsigned first, unsigned rows, SET set) {
    const product_lane &how = p.lanes[0];
    if (transposed) {
        for (unsigned k = 0; k < 16; k++)
            for (unsigned row = 0; row < rows; row += 8) {
                const unsigned char *chunk = operand_chunk(operand, true, first + row, k, p.where);
                for (unsigned e = 0; e < 8; e++) set(row + e, k, number_of(chunk + 2 * e, how.half));
            }
        return;
    }
    for (unsigned row = 0; row < rows; row++)
        for (unsigned k = 0; k < 16; k += 8) {
            const unsigned char *chunk = operand_chunk(operand, false, first + row, k, p.where);
            for (unsigned e = 0; e < 8; e++) set(row, k + e, number_of(chunk + 2 * e, how.half));
        }
}

/* As simulated_matrix.h: sums of one product are exact, then cut off. Not instrumented, for time: most of it is spent here. */
template <unsigned COLUMNS>
__attribute__((no_sanitize("address", "undefined"))) static void
multiply_rows(float *values, const float (*a)[16], const double (*b)[most_columns], bool finite) {
    for (unsigned row = 0; row < 16; row++) {
        double sums[COLUMNS];
        for (unsigned n = 0; n < COLUMNS; n++) sums[n] = static_cast<double>(values[row * COLUMNS + n]);
        for (unsigned k = 0; k < 16; k++) {
            const double factor = static_cast<double>(a[row][k]);
            if (factor == 0.0 && finite) continue;
            for (unsigned n = 0; n < COLUMNS; n++) sums[n] += factor * b[k][n];
        }
        for (unsigned n = 0; n < COLUMNS; n++) values[row * COLUMNS + n] = cut_off(sums[n]);
    }
}

/* The oldest product of a wave. */
void hopper::execute(matrix_wave &w) {
    double(&b)[16][most_columns] = right;
    const product p = w.queue.front();
    const product_lane &how = p.lanes[0];
    const unsigned columns = 2 * how.count, wave_in_group = static_cast<unsigned>(&w - waves.data()) % 4;
    float a[16][16];
    bool finite = true;
    w.queue.pop_front();
    read_operand(p, how.b_operand, how.b_transposed, 0, columns, [&](unsigned row, unsigned k, float number) {
        b[k][row] = static_cast<double>(number);
        finite = finite && std::isfinite(number);
    });
    if (!how.a)
        read_operand(p, how.a_operand, how.a_transposed, wave_in_group * 16, 16,
                     [&](unsigned row, unsigned k, float n) { a[row][k] = n; });
    for (unsigned row = 0; how.a && row < 16; row++)
        for (unsigned k = 0; k < 16; k++) { /* as mma_m16n8k16 */
            const uint32_t pair = p.lanes[row % 8 * 4 + k % 8 / 2].a[k / 8 * 2 + row / 8];
            const uint16_t bits = static_cast<uint16_t>(pair >> k % 2 * 16);
            a[row][k] = number_of(reinterpret_cast<const unsigned char *>(&bits), how.half);
        }
    float *values = p.sums->values.data();
    if (!how.accumulate) std::fill(p.sums->values.begin(), p.sums->values.end(), 0.0f);
    (columns == 64    ? multiply_rows<64>
     : columns == 128 ? multiply_rows<128>
                      : multiply_rows<256>)(values, a, b, finite);
}

/* --- Registers, and the rest --- */

void hopper::set_registers(int wanted, bool more, const site &where) {
    int &mine = registers[own.number_of(*own.running)];
    if (wanted % 8 || wanted < 24 || wanted > 256 || (more ? wanted < mine : wanted > mine))
        own.fail("%s from %d to %d registers", more ? "up" : "down", mine, wanted);
    while (free_registers < wanted - mine) {
        wants_registers.push_back(own.running);
        own.suspend(where);
    }
    free_registers -= wanted - mine;
    mine = wanted;
    if (more) return;
    for (thread *t : wants_registers) own.wake(*t);
    wants_registers.clear();
}

bool hopper::is_elected(const site &where) {
    own.meet_wave_to(nullptr, where, [](void *const *) {});
    return own.running->lane == elected;
}

} // namespace simulated
