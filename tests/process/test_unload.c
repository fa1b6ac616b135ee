/*
 * test_unload.c: loads and unloads a plugin that has the library (plugin.c), again and again: no memory and no threads are left
 * behind, also where a thread that has used it ends only after the plugin is gone. The library itself stays: the threads of
 * OpenMP live on, whose runtime would go with it.
 * usage: test_unload PLUGIN LIBRARY [ROUNDS]
 */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*plugin_function)(uint64_t *digest, char *words, size_t size);

static void must(int holds, const char *what, const char *words) {
    if (holds) return;
    fprintf(stderr, "test_unload: %s: %s\n", what, words);
    exit(1);
}

static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    must(file && fscanf(file, "%*d %ld", &pages) == 1, "statm", "unreadable");
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static int threads_now(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    must(folder != NULL, "task", "unreadable");
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

typedef struct user {
    plugin_function run;
    pthread_barrier_t barrier;
    uint64_t digest;
    int good;
} user;

/* Uses the library, and ends when it has been unloaded. */
static void *use(void *argument) {
    user *u = argument;
    char words[512];
    u->good = u->run(&u->digest, words, sizeof words);
    pthread_barrier_wait(&u->barrier);
    pthread_barrier_wait(&u->barrier);
    return NULL;
}

static uint64_t round_trip(const char *plugin, const char *library, const char *function, int with_thread) {
    char words[512];
    uint64_t digest = 0;
    user u = { .good = 1 };
    pthread_t thread;
    void *loaded = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    must(loaded != NULL, plugin, loaded ? "" : dlerror());
    *(void **)&u.run = dlsym(loaded, function);
    must(u.run != NULL, function, "missing");
    must(u.run(&digest, words, sizeof words), function, words);
    if (with_thread) {
        pthread_barrier_init(&u.barrier, NULL, 2);
        must(pthread_create(&thread, NULL, use, &u) == 0, "pthread_create", "failed");
        pthread_barrier_wait(&u.barrier);
        must(u.good && u.digest == digest, "a life in a thread", "other numbers");
    }
    must(dlclose(loaded) == 0, "dlclose", "failed");
    must(dlopen(plugin, RTLD_NOW | RTLD_NOLOAD) == NULL, plugin, "is still there after dlclose");
    loaded = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    must(loaded != NULL, library, "is gone, and OpenMP's code with it");
    dlclose(loaded);
    if (with_thread) {
        pthread_barrier_wait(&u.barrier);
        pthread_join(thread, NULL);
        pthread_barrier_destroy(&u.barrier);
    }
    return digest;
}

int main(int argc, char **argv) {
    enum {
        WARM = 50,
        EACH = 50,      /* rounds that compute something too */
        SLACK = 1 << 20 /* bytes; 4 KB a round would be four times that */
    };
    const int rounds = argc > 3 ? atoi(argv[3]) : 1000;
    if (argc < 3 || rounds <= WARM) {
        fprintf(stderr, "usage: test_unload PLUGIN LIBRARY [ROUNDS]\n");
        return 2;
    }
    const uint64_t digest = round_trip(argv[1], argv[2], "plugin_run", 1);
    int threads = 0;
    long before = 0;
    for (int i = 0; i < rounds; i++) {
        if (i == WARM) {
            before = resident();
            threads = threads_now();
        }
        round_trip(argv[1], argv[2], "plugin_touch", i % 10 == 0);
        if (i % EACH == 0) must(round_trip(argv[1], argv[2], "plugin_run", 1) == digest, "plugin_run", "other numbers");
    }
    const long grown = resident() - before;
    printf("%d rounds: grown by %ld bytes, %d threads and then %d\n", rounds, grown, threads, threads_now());
    must(grown < SLACK, "memory", "is left behind");
    must(threads_now() == threads, "threads", "are left behind");
    return 0;
}
