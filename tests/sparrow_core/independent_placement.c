/* An independent simulation of the techniques of Batch Sampling (Ousterhout et al., 2012) and
 * Sparrow (2013), written from the papers' text alone: it shares no code, no random numbers and no
 * method with sparrow_core. Every event passes through one heap; nodes know their queues only.
 *
 *   placement TECHNIQUE NODES SLOTS TASKS RATIO LOAD DISTRIBUTION JOBS SEED
 *
 * TECHNIQUE: random, per-task, batch, late, omniscient. DISTRIBUTION: exponential, constant,
 * pareto (shape 1.5), all of mean 100 ms. A message takes 0.5 ms. Prints each job's response time
 * in ms, in order of arrival: from submission until its last task ends ("Response time describes
 * the time from when the request is submitted to the scheduler until the last task finishes"). */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEAN_MS 100.0
#define ONE_WAY_MS 0.5
#define PARETO_SHAPE 1.5

enum technique { RANDOM, PER_TASK, BATCH, LATE, OMNISCIENT };
enum kind { SUBMIT, PROBES_ARRIVE, LOADS_ARRIVE, TASKS_ARRIVE, GET_TASK, ANSWER, FINISH };

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) { fprintf(stderr, "out of memory\n"); exit(1); }
    return memory;
}

/* ---- random numbers: splitmix64 -------------------------------------------------------------- */
static uint64_t state;

static uint64_t next64(void) {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static double uniform(void) { return ((double)(next64() >> 11) + 1.0) / 9007199254740993.0; }

static int below(int bound) { return (int)(((next64() >> 32) * (uint64_t)bound) >> 32); }

static char distribution;

static double service(void) {
    if (distribution == 'c') return MEAN_MS;
    if (distribution == 'e') return -MEAN_MS * log(uniform());
    return MEAN_MS * (PARETO_SHAPE - 1) / PARETO_SHAPE * pow(uniform(), -1 / PARETO_SHAPE);
}

/* ---- events: a binary heap by time, then by order of creation --------------------------------- */
struct event { double time; uint64_t order; int kind, job, node; double work; };

static struct event *heap;
static size_t heap_size, heap_room;
static uint64_t created;
static double now;

static int before(const struct event *a, const struct event *b) {
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void after(double delay, int kind, int job, int node, double work) {
    if (heap_size == heap_room) {
        heap_room = heap_room ? 2 * heap_room : 1024;
        heap = realloc(heap, heap_room * sizeof *heap);
        if (!heap) { fprintf(stderr, "out of memory\n"); exit(1); }
    }
    struct event added = {now + delay, created++, kind, job, node, work};
    size_t at = heap_size++;
    while (at && before(&added, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = added;
}

static struct event earliest(void) {
    struct event first = heap[0], last = heap[--heap_size];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= heap_size) break;
        if (child + 1 < heap_size && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return first;
}

/* ---- nodes: slots and a queue, of tasks (work known) or of reservations (work unknown) -------- */
struct waiting { int job; double work; int next; };
struct node { int busy, queued, first, last; };

static struct waiting *pool;
static int pool_size, pool_room, pool_free = -1;

static void append(struct node *node, int job, double work) {
    int entry = pool_free;
    if (entry >= 0) pool_free = pool[entry].next;
    else {
        if (pool_size == pool_room) {
            pool_room = pool_room ? 2 * pool_room : 1024;
            pool = realloc(pool, (size_t)pool_room * sizeof *pool);
            if (!pool) { fprintf(stderr, "out of memory\n"); exit(1); }
        }
        entry = pool_size++;
    }
    pool[entry] = (struct waiting){job, work, -1};
    if (node->queued++) pool[node->last].next = entry;
    else node->first = entry;
    node->last = entry;
}

static struct waiting take_first(struct node *node) {
    int entry = node->first;
    struct waiting taken = pool[entry];
    node->first = taken.next;
    node->queued--;
    pool[entry].next = pool_free;
    pool_free = entry;
    return taken;
}

/* ---- the simulation ---------------------------------------------------------------------------- */
struct job { double submitted, ended; int unplaced, running; int *nodes; int *loads; };

static struct node *nodes, central;
static struct job *jobs;
static int *shuffled; /* a permutation of the nodes, for samples without replacement */
static int node_count, slots, tasks, probes, technique;
static double ratio;
static int idle_slots;

static void sample_distinct(int *into, int count) {
    for (int i = 0; i < count; i++) {
        int j = i + below(node_count - i), chosen = shuffled[j];
        shuffled[j] = shuffled[i];
        shuffled[i] = chosen;
        into[i] = chosen;
    }
}

/* A slot is free: what the node does with the head of its queue. */
static void start_next(int at) {
    struct node *node = &nodes[at];
    while (node->busy < slots && node->queued) {
        struct waiting head = take_first(node);
        node->busy++;
        if (technique == LATE) after(ONE_WAY_MS, GET_TASK, head.job, at, 0);
        else after(head.work, FINISH, head.job, at, 0);
    }
}

static void start_central(void) {
    while (idle_slots && central.queued) {
        struct waiting head = take_first(&central);
        idle_slots--;
        after(head.work, FINISH, head.job, -1, 0);
    }
}

static void submit(int number) {
    struct job *job = &jobs[number];
    job->submitted = now;
    job->unplaced = job->running = tasks;
    if (technique == OMNISCIENT) {
        for (int i = 0; i < tasks; i++) append(&central, number, service());
        start_central();
        return;
    }
    job->nodes = allocate((size_t)probes, sizeof(int));
    if (technique == RANDOM) {
        for (int i = 0; i < tasks; i++) job->nodes[i] = below(node_count);
        after(ONE_WAY_MS, TASKS_ARRIVE, number, -1, 0);
        return;
    }
    if (technique == PER_TASK) {
        int each = (int)ratio;
        for (int i = 0; i < tasks; i++) sample_distinct(job->nodes + i * each, each);
    } else sample_distinct(job->nodes, probes);
    after(ONE_WAY_MS, PROBES_ARRIVE, number, -1, 0);
}

static void probes_arrive(int number) {
    struct job *job = &jobs[number];
    if (technique == LATE) {
        for (int i = 0; i < probes; i++) {
            append(&nodes[job->nodes[i]], number, 0);
            start_next(job->nodes[i]);
        }
        return;
    }
    job->loads = allocate((size_t)probes, sizeof(int));
    for (int i = 0; i < probes; i++)
        job->loads[i] = nodes[job->nodes[i]].busy + nodes[job->nodes[i]].queued;
    after(ONE_WAY_MS, LOADS_ARRIVE, number, -1, 0);
}

/* Moves the `count` least loaded of the nodes from `first` on to the front; ties by lot. */
static void choose(struct job *job, int first, int length, int count, int into) {
    for (int i = 0; i < length; i++) { /* shuffle, so that equal loads are in random order */
        int j = i + below(length - i);
        int node = job->nodes[first + i], load = job->loads[first + i];
        job->nodes[first + i] = job->nodes[first + j];
        job->loads[first + i] = job->loads[first + j];
        job->nodes[first + j] = node;
        job->loads[first + j] = load;
    }
    int highest = 0, placed = 0;
    for (int i = 0; i < length; i++)
        if (job->loads[first + i] > highest) highest = job->loads[first + i];
    int *chosen = allocate((size_t)count, sizeof(int));
    for (int load = 0; load <= highest && placed < count; load++)
        for (int i = 0; i < length && placed < count; i++)
            if (job->loads[first + i] == load) chosen[placed++] = job->nodes[first + i];
    memcpy(job->nodes + into, chosen, (size_t)count * sizeof(int));
    free(chosen);
}

static void loads_arrive(int number) {
    struct job *job = &jobs[number];
    if (technique == PER_TASK) {
        int each = (int)ratio;
        for (int i = 0; i < tasks; i++) choose(job, i * each, each, 1, i);
    } else choose(job, 0, probes, tasks, 0);
    free(job->loads);
    after(ONE_WAY_MS, TASKS_ARRIVE, number, -1, 0);
}

static void tasks_arrive(int number) {
    for (int i = 0; i < tasks; i++) {
        append(&nodes[jobs[number].nodes[i]], number, service());
        start_next(jobs[number].nodes[i]);
    }
}

static void finish(int number, int at) {
    struct job *job = &jobs[number];
    if (--job->running == 0) {
        job->ended = now;
        free(job->nodes);
        job->nodes = NULL;
    }
    if (at < 0) {
        idle_slots++;
        start_central();
    } else {
        nodes[at].busy--;
        start_next(at);
    }
}

static int technique_named(const char *name) {
    const char *names[] = {"random", "per-task", "batch", "late", "omniscient"};
    for (int i = 0; i < 5; i++)
        if (!strcmp(name, names[i])) return i;
    fprintf(stderr, "unknown technique: %s\n", name);
    exit(2);
}

int main(int count, char **argument) {
    if (count != 10) { fprintf(stderr, "nine arguments are needed\n"); return 2; }
    technique = technique_named(argument[1]);
    node_count = atoi(argument[2]);
    slots = atoi(argument[3]);
    tasks = atoi(argument[4]);
    ratio = atof(argument[5]);
    double load = atof(argument[6]);
    distribution = argument[7][0];
    int job_count = atoi(argument[8]), submitted = 0, done = 0;
    state = strtoull(argument[9], NULL, 10) * 0x2545F4914F6CDD1Dull;
    probes = technique == RANDOM ? tasks : (int)ceil(ratio * tasks - 1e-9);
    if (technique != RANDOM && technique != PER_TASK && probes > node_count) {
        fprintf(stderr, "more probes than nodes\n");
        return 2;
    }
    nodes = allocate((size_t)node_count, sizeof *nodes);
    jobs = allocate((size_t)job_count, sizeof *jobs);
    shuffled = allocate((size_t)node_count, sizeof(int));
    for (int i = 0; i < node_count; i++) shuffled[i] = i;
    idle_slots = node_count * slots;
    double gap = tasks * MEAN_MS / (load * node_count * slots); /* the model of section 4.1 */
    after(-gap * log(uniform()), SUBMIT, submitted++, -1, 0);
    while (done < job_count) {
        struct event event = earliest();
        struct job *job = &jobs[event.job];
        now = event.time;
        switch (event.kind) {
        case SUBMIT:
            submit(event.job);
            if (submitted < job_count) after(-gap * log(uniform()), SUBMIT, submitted++, -1, 0);
            break;
        case PROBES_ARRIVE: probes_arrive(event.job); break;
        case LOADS_ARRIVE: loads_arrive(event.job); break;
        case TASKS_ARRIVE: tasks_arrive(event.job); break;
        case GET_TASK: {
            double work = job->unplaced ? service() : -1;
            if (job->unplaced) job->unplaced--;
            after(ONE_WAY_MS, ANSWER, event.job, event.node, work);
            break;
        }
        case ANSWER:
            if (event.work >= 0) after(event.work, FINISH, event.job, event.node, 0);
            else {
                nodes[event.node].busy--;
                start_next(event.node);
            }
            break;
        case FINISH:
            finish(event.job, event.node);
            done += job->running == 0;
            break;
        }
    }
    for (int i = 0; i < job_count; i++) printf("%.6f\n", jobs[i].ended - jobs[i].submitted);
    return 0;
}
