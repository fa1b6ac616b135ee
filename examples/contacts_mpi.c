/*
 * contacts_mpi.c: contact maps of many alignments on many devices: each MPI rank opens a device of its own, computes the
 * maps of its share of the alignments, and rank 0 writes all maps to one file.
 * usage: mpirun -n RANKS contacts_mpi OUTPUT.tsv ALIGNMENT...
 *
 * Alignment k belongs to rank k modulo the number of ranks. Each of the file's lines is a pair of columns: the
 * alignment, i, j (from 1, i < j) and the score of contact. The ranks of one machine share its GPUs out among them;
 * where it has none, all use the CPU, with as many threads as the launcher binds them to processors.
 */
#include "coevolution.h"

#include <errno.h>
#include <evoformer/evoformer.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

/* Ends all ranks; whatever failed has said why. */
static void give_up(void) {
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}

/* The number of this rank among those of its machine. */
static int local_rank(void) {
    MPI_Comm machine;
    int local;

    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &local);
    MPI_Comm_free(&machine);
    return local;
}

/* This rank's own device: GPUs in turn, if the library finds some on this machine, else the CPU. */
static void own_device(char *name, size_t size) {
    evo_device_info info = EVO_DEVICE_INFO_INIT;
    int gpus = 0, local = local_rank();

    for (int k = 0; evo_device_get(k, &info) == EVO_OK; k++) gpus += strcmp(info.name, "cpu") != 0;
    snprintf(name, size, "cpu");
    for (int k = 0, gpu = 0; gpus > 0 && evo_device_get(k, &info) == EVO_OK; k++)
        if (strcmp(info.name, "cpu") != 0 && gpu++ == local % gpus) snprintf(name, size, "%s", info.name);
}

/* The contact map of an alignment, [columns][columns]; the caller frees it. */
static double *contact_map(const char *path, struct evo_context *device, size_t *columns) {
    struct alignment alignment;
    struct mean_report report;
    double *weights = NULL, *scores = NULL;
    float *frequencies = NULL;
    bool varies;

    if (!alignment_read(&alignment, path)) give_up();
    weights = alignment_weights(&alignment, NULL);
    if (weights) frequencies = pair_frequencies(&alignment, weights, device, &report);
    if (frequencies) scores = contact_scores(frequencies, alignment.columns, &varies);
    if (!scores || alignment.columns > 40000) { /* its square is an int for MPI */
        complain("%s: no contact map: out of memory, or too large", path);
        give_up();
    }
    fprintf(stderr, "rank %d: %s on %s (%s), kernel %s, %.2f s\n", rank, path, report.device, report.description,
            report.kernel, report.seconds);
    *columns = alignment.columns;
    free(frequencies);
    free(weights);
    alignment_free(&alignment);
    return scores;
}

static void write_map(FILE *file, const char *path, const double *scores, size_t columns) {
    const char *slash = strrchr(path, '/');

    for (size_t i = 0; i < columns; i++)
        for (size_t j = i + 1; j < columns; j++)
            fprintf(file, "%s\t%zu\t%zu\t%.9g\n", slash ? slash + 1 : path, i + 1, j + 1, scores[i * columns + j]);
}

/* Rank 0: its own maps and those that the others send, in the order of the alignments. */
static void gather(const char *output, char **paths, int count, double **maps, const size_t *columns) {
    FILE *file = fopen(output, "w");

    if (file) fprintf(file, "alignment\ti\tj\tscore\n");
    for (int k = 0; k < count && file; k++) {
        unsigned long long other = columns[k];
        if (k % ranks != 0) {
            MPI_Recv(&other, 1, MPI_UNSIGNED_LONG_LONG, k % ranks, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            maps[k] = malloc(other * other * sizeof(double));
            if (!maps[k]) break;
            MPI_Recv(maps[k], (int)(other * other), MPI_DOUBLE, k % ranks, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        write_map(file, paths[k], maps[k], (size_t)other);
        if (k == count - 1 && fclose(file) == 0) return;
    }
    complain("%s: %s", output, strerror(errno));
    give_up();
}

int main(int argc, char **argv) {
    program_name = "contacts_mpi";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 3) {
        if (rank == 0) fprintf(stderr, "usage: mpirun -n RANKS contacts_mpi OUTPUT.tsv ALIGNMENT...\n");
        MPI_Finalize();
        return 2;
    }

    struct evo_context *device;
    bool misnamed;
    char **paths = argv + 2, name[32];
    int count = argc - 2;
    double **maps = calloc((size_t)count, sizeof *maps); /* of this rank's share */
    size_t *columns = calloc((size_t)count, sizeof *columns);
    if (!maps || !columns) give_up();
    own_device(name, sizeof name);
    device = device_open(name, &misnamed);
    if (!device) give_up();
    for (int k = rank; k < count; k += ranks) maps[k] = contact_map(paths[k], device, &columns[k]);

    for (int k = rank; k < count && rank != 0; k += ranks) {
        unsigned long long size = columns[k];
        MPI_Send(&size, 1, MPI_UNSIGNED_LONG_LONG, 0, k, MPI_COMM_WORLD);
        MPI_Send(maps[k], (int)(size * size), MPI_DOUBLE, 0, k, MPI_COMM_WORLD);
    }
    if (rank == 0) gather(argv[1], paths, count, maps, columns);

    for (int k = 0; k < count; k++) free(maps[k]);
    free(maps);
    free(columns);
    device_close(device);
    MPI_Finalize();
    return EXIT_SUCCESS;
}
