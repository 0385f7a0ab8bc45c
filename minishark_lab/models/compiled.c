/* Schedulers and nodes of sparrow_core, simulated without faults: see compiled.py.
 *
 * Written anew from what docs/policies.md and docs/experiments.md say of them: it shares no code and
 * no random numbers with the production policies. Messages between nodes and schedulers all take
 * as long, so that they wait in a ring; only ends of tasks are in a heap.
 *
 *   compiled PLACEMENT POLICY NODES SLOTS SCHEDULERS RATIO SEED DELAY LOCAL HEARTBEAT JOBS < jobs
 *
 * jobs: JOBS arrival times, estimates of task times (both doubles) and numbers of tasks (as
 * doubles), then the times of all tasks, in seconds. Writes the response time of each job, then
 * the counts of `enum sent`, all as doubles. Waiting jobs of more tasks than nodes are spread. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum placement { CENTRAL, RANDOM, SPARROW, ADAPTIVE, KNOWN_IDLE, JIQ, EAGLE };
enum policy { FIFO, SRPT };
enum sent { RESERVED, ASKED, ANSWERED, CANCELLED, IDLE, NOTES, NOTED, HEARTBEATS, SENT_KINDS };
enum event { SUBMIT, RESERVATIONS, ASK, ANSWER, CANCEL, FELL_IDLE, NEWS, JOB_END };

#define TICK_S 0.5          /* of schedulers */
#define PATIENCE 5.0        /* task times that a job waits at most for shorter ones, under SRPT */
#define NEWS_EACH 10        /* nodes that are new for each other scheduler */
#define NEWS_S 0.05
#define NEWS_SHARE 0.05
#define LONG_TIMES 10.0     /* Eagle: the usual task time */
#define TOLD_TIMES 3.0
#define PARTITION 10        /* one node in so many is for short jobs */

static void *sized(void *memory, size_t count, size_t size) {
    memory = realloc(memory, (count ? count : 1) * size);
    if (!memory) { fprintf(stderr, "out of memory\n"); exit(1); }
    return memory;
}

static void *zeroed(size_t count, size_t size) {
    return memset(sized(NULL, count, size), 0, (count ? count : 1) * size);
}

/* Pools: arrays of structs whose first member, an int, links those that are free. */
#define POOL(type) struct { struct type *at; int size, room, free; }
#define NEW(pool) (((pool).free ? 0 : grow((void **)&(pool).at, &(pool).size, &(pool).room, \
    sizeof *(pool).at)), (pool).free ? taken(&(pool).free, (int *)&(pool).at[(pool).free]) \
    : (pool).size++)
#define FREE(pool, index) ((pool).at[index].next = (pool).free, (pool).free = (index))

static int grow(void **at, int *size, int *room, size_t each) {
    if (!*size) *size = 1; /* 0 is no index */
    if (*size >= *room) *at = sized(*at, (size_t)(*room = *room ? 2 * *room : 1024), each);
    return 0;
}

static int taken(int *free_one, const int *next) {
    int index = *free_one;
    *free_one = *next;
    return index;
}

/* ---- random numbers: splitmix64 -------------------------------------------------------------- */
static uint64_t state;

static int below(int bound) {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return (int)(((z >> 32) * (uint64_t)bound) >> 32);
}

/* Moves `count` of them, drawn without replacement, to the front. */
static void shuffle(int *of, int length, int count) {
    for (int i = 0; i < count; i++) {
        int j = i + below(length - i), chosen = of[j];
        of[j] = of[i];
        of[i] = chosen;
    }
}

/* ---- what there is ----------------------------------------------------------------------------- */
struct reserved { int node, left, sent; char tried; }; /* left: -1 where it was cancelled */
struct job {
    double at_s, estimate_s, last_s, reserved_at;
    const double *times_s;
    int tasks, bound, started, scheduler, reserved, room, prompt, tried, runs;
    char is_open, is_long, is_bound;
    struct reserved *on;
};
struct held { int next, job, on, count, waiting, asked; double since; };
struct ask { int next, job, node, on, count, tasks, net, stamp, waiting, runs, live, drained; };
struct run { int next, job, node, heard, more; }; /* a long task; `next`: not yet told by its node */
struct node { int room, queued, first, last, asks, stamp, idle_to, unreported; double *since; };
struct note { int next, node, stamp, number; };
struct known { int load, before, after, stamp, news; char listed, told; }; /* of a node */
struct scheduler {
    struct known *of; /* of[nodes] is the end of the list of those that have load */
    int news, last_news, new_count, known_count, alone, hungry_first, hungry_last;
    double told_at, round_trip_s, idle_share, mean_log_s;
    int has_mean;
};
struct hungry { int next, job; };

static POOL(held) helds;
static POOL(ask) asks;
static POOL(run) runs;
static POOL(note) notes;
static POOL(hungry) hungries;
static struct job *jobs;
static struct node *nodes;
static struct scheduler *schedulers;
static int placement, policy, node_count, slots, scheduler_count, job_count;
static double ratio, delay_s, local_s, heartbeat_s, now;
static double sent[SENT_KINDS];
static int *order, *chosen; /* a permutation of the nodes; room for as many */

static int wants_levels(void) {
    return placement == KNOWN_IDLE || placement == JIQ || placement == EAGLE;
}

/* ---- messages, and ends of tasks ----------------------------------------------------------------- */
struct message { double at_s; int kind, subject, more, extra; };
static struct message *ring;
static size_t ring_first, ring_count, ring_room;

static void send_message(int kind, int subject, int more, int extra) {
    if (ring_count == ring_room) {
        size_t room = ring_room ? 2 * ring_room : 4096;
        struct message *bigger = sized(NULL, room, sizeof *bigger);
        for (size_t i = 0; i < ring_count; i++) bigger[i] = ring[(ring_first + i) & (ring_room - 1)];
        free(ring);
        ring = bigger, ring_first = 0, ring_room = room;
    }
    ring[(ring_first + ring_count++) & (ring_room - 1)] =
        (struct message){now + delay_s, kind, subject, more, extra};
}

struct end { double at_s, began_s; int job, node, run; };
static struct end *ends;
static size_t end_count, end_room;

static void push_end(struct end added) {
    if (end_count == end_room)
        ends = sized(ends, end_room = end_room ? 2 * end_room : 4096, sizeof *ends);
    size_t at = end_count++;
    while (at && added.at_s < ends[(at - 1) / 2].at_s) {
        ends[at] = ends[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    ends[at] = added;
}

static struct end pop_end(void) {
    struct end first = ends[0], last = ends[--end_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= end_count) break;
        if (child + 1 < end_count && ends[child + 1].at_s < ends[child].at_s) child++;
        if (ends[child].at_s >= last.at_s) break;
        ends[at] = ends[child];
        at = child;
    }
    ends[at] = last;
    return first;
}

/* ---- what schedulers know of nodes ------------------------------------------------------------- *
 * A node's load, and the nodes that have one in the order in which they last got work. */
static void unlist(struct scheduler *s, int node) {
    struct known *known = &s->of[node];
    if (!known->listed) return;
    s->of[known->before].after = known->after;
    s->of[known->after].before = known->before;
    known->listed = 0;
}

static void list_last(struct scheduler *s, int node) {
    struct known *known = &s->of[node], *end = &s->of[node_count];
    known->before = end->before;
    known->after = node_count;
    s->of[end->before].after = node;
    end->before = node;
    known->listed = 1;
}

static int is_free(const struct scheduler *s, int node) {
    int load = s->of[node].load;
    return placement == KNOWN_IDLE ? load < 0 : !load;
}

/* Known idle nodes: the load is queued reservations minus free slots; -1 is not listed. */
static void set_level(struct scheduler *s, int node, int net) {
    unlist(s, node);
    s->of[node].load = net;
    if (net != -1) list_last(s, node);
}

static void change_level(struct scheduler *s, int node, int count) {
    struct known *known = &s->of[node];
    int net = known->load + count;
    if (count < 0 && known->listed && net != -1) known->load = net;
    else set_level(s, node, net);
}

static struct note *news_of(struct scheduler *s, int node) {
    struct known *known = &s->of[node];
    if (!known->news) {
        int note = NEW(notes);
        notes.at[note] = (struct note){0, node, 0, 0};
        if (s->last_news) notes.at[s->last_news].next = note;
        else s->news = note;
        s->last_news = known->news = note;
        s->new_count++;
    }
    return &notes.at[known->news];
}

static void told_level(struct scheduler *s, int node, int net, int stamp) {
    if (stamp <= s->of[node].stamp) return;
    if (!s->of[node].stamp) s->known_count++;
    s->of[node].stamp = stamp;
    if (scheduler_count > 1) {
        struct note *note = news_of(s, node);
        note->stamp = stamp;
        note->number = net;
    }
    set_level(s, node, net);
}

/* A scheduler has sent reservations to a node, or withdrawn them, or a task of its has ended. */
static void add_load(struct scheduler *s, int node, int count) {
    struct known *known = &s->of[node];
    if (placement == KNOWN_IDLE) {
        if (scheduler_count > 1) news_of(s, node)->number += count;
        change_level(s, node, count);
        return;
    }
    int load = known->load + count;
    if (load <= 0 || count >= 0) unlist(s, node);
    known->load = load > 0 ? load : 0;
    if (load > 0 && !known->listed) list_last(s, node);
}

static void tell_peers(int number) {
    struct scheduler *s = &schedulers[number];
    int peers = scheduler_count - 1, enough = NEWS_EACH * peers;
    if (placement != KNOWN_IDLE || !peers) return;
    s->alone = enough > NEWS_SHARE * s->known_count;
    if (!s->news || (!s->alone && s->new_count < enough && now < s->told_at + NEWS_S)) return;
    int first = s->news, count = s->new_count;
    for (int note = first; note; note = notes.at[note].next) s->of[notes.at[note].node].news = 0;
    s->news = s->last_news = s->new_count = 0;
    if (s->alone) {
        for (int note = first, next; note; note = next) next = notes.at[note].next, FREE(notes, note);
        return;
    }
    s->told_at = now;
    sent[NOTES] += peers;
    sent[NOTED] += (double)peers * count;
    send_message(NEWS, number, first, 0);
}

static void hear_news(int teller, int first) {
    for (int other = 0; other < scheduler_count; other++) {
        struct scheduler *s = &schedulers[other];
        for (int note = other == teller ? 0 : first; note; note = notes.at[note].next) {
            struct note told = notes.at[note];
            if (!told.stamp) change_level(s, told.node, told.number);
            else if (told.stamp > s->of[told.node].stamp) {
                if (!s->of[told.node].stamp) s->known_count++;
                s->of[told.node].stamp = told.stamp;
                set_level(s, told.node, told.number);
            }
        }
    }
    for (int note = first, next; note; note = next) next = notes.at[note].next, FREE(notes, note);
}

/* ---- placements -------------------------------------------------------------------------------- */
static int of_ratio(int tasks, double times) { return (int)ceil(tasks * times - 1e-9); }

/* `count` of the first `length` of `order` with the least load, into `chosen`: free ones by lot,
 * then those with the oldest work. */
static void choose_least_loaded(struct scheduler *s, int length, int count) {
    int free_ones = 0;
    for (int i = 0; i < length; i++)
        if (is_free(s, order[i])) {
            int node = order[i];
            order[i] = order[free_ones];
            order[free_ones++] = node;
        }
    if (free_ones >= count) shuffle(order, free_ones, count);
    int found = free_ones < count ? free_ones : count;
    memcpy(chosen, order, (size_t)found * sizeof *chosen);
    /* Those that are not free, by load: a pass over the list for each. */
    for (int load = placement == KNOWN_IDLE ? 0 : 1; found < count;) {
        int next_load = 0;
        for (int node = s->of[node_count].after; node != node_count; node = s->of[node].after) {
            int has = s->of[node].load;
            if (placement == EAGLE && node % PARTITION == 0) continue;
            if (has == load && found < count) chosen[found++] = node;
            else if (has > load && (!next_load || has < next_load)) next_load = has;
        }
        load = next_load;
        if (!next_load) break;
    }
}

/* What is to be reserved, into the job: `count` on the first `length` of `order`, evenly. */
static void reserve_on(struct job *job, const int *of, int length, int count) {
    int distinct = count < length ? count : length;
    for (int i = 0; i < distinct; i++) {
        if (job->reserved == job->room)
            job->on = sized(job->on, (size_t)(job->room = job->room ? 2 * job->room : distinct),
                            sizeof *job->on);
        int number = count / distinct + (i < count % distinct);
        job->on[job->reserved++] = (struct reserved){of[i], number, number, 0};
    }
}

static void note_idle_share(struct scheduler *s, const struct job *job) {
    double seen = (double)job->prompt / job->tried;
    if (job->prompt >= job->tasks) seen = fmin(1.0, fmax(1.1 * s->idle_share, seen));
    s->idle_share += 0.2 * (seen - s->idle_share);
}

static void place_eagle(struct scheduler *s, struct job *job) {
    int length = 0, count = of_ratio(job->tasks, ratio);
    job->is_long = 0;
    if (job->estimate_s > 0) {
        double log_s = log(job->estimate_s);
        if (!s->has_mean) s->mean_log_s = log_s, s->has_mean = 1;
        s->mean_log_s += 0.01 * (log_s - s->mean_log_s);
        job->is_long = job->estimate_s > LONG_TIMES * exp(s->mean_log_s);
    }
    for (int i = 0; i < node_count; i++) {
        int node = order[i];
        int may = job->is_long ? node % PARTITION != 0 : !s->of[node].load && !s->of[node].told;
        if (!may) continue;
        order[i] = order[length];
        order[length++] = node;
    }
    if (!length) length = node_count;
    if (job->is_long && count <= length) {
        choose_least_loaded(s, length, count);
        reserve_on(job, chosen, count, count);
    } else {
        shuffle(order, length, count < length ? count : length);
        reserve_on(job, order, length, count);
    }
    job->is_open = job->is_long;
}

/* Tasks bound when they are placed: to a node that is idle as far as is known, or any. */
static void place_bound(struct scheduler *s, struct job *job) {
    job->is_bound = 1;
    for (int i = 0; i < job->tasks; i++) {
        int first = s->of[node_count].after, node = first;
        if (placement == JIQ && first != node_count) {
            if (!--s->of[node].load) unlist(s, node);
        } else node = below(node_count);
        int on = chosen[node]; /* of a job before, unless it is this one's */
        if (on < job->reserved && job->on[on].node == node) job->on[on].left++, job->on[on].sent++;
        else {
            chosen[node] = job->reserved;
            reserve_on(job, &node, 1, 1);
        }
    }
}

static void place(struct job *job) {
    struct scheduler *s = &schedulers[job->scheduler];
    double times = ratio;
    switch (placement) {
    case RANDOM: case JIQ: place_bound(s, job); return;
    case EAGLE: place_eagle(s, job); return;
    case ADAPTIVE: times = fmin(fmax(1.1 / fmax(s->idle_share, 0.01), 1.1), 6.0); break;
    case KNOWN_IDLE: times = s->alone ? 1.35 : 1.15; break;
    }
    int count = of_ratio(job->tasks, times);
    job->is_open = placement != SPARROW;
    if (placement == KNOWN_IDLE) {
        int free_ones = 0, needed = of_ratio(job->tasks, 1.02 / fmax(s->idle_share, 0.01));
        for (int node = 0; node < node_count; node++) free_ones += is_free(s, node);
        if (needed <= (free_ones < count ? free_ones : count)) count = needed;
        if (count <= node_count) {
            choose_least_loaded(s, node_count, count);
            reserve_on(job, chosen, count, count);
            return;
        }
    }
    shuffle(order, node_count, count < node_count ? count : node_count);
    reserve_on(job, order, node_count, count);
}

/* ---- schedulers --------------------------------------------------------------------------------- */
static void remember_reserved(struct job *job, int first) {
    struct scheduler *s = &schedulers[job->scheduler];
    if (!job->reserved_at) job->reserved_at = now;
    for (int on = first; on < job->reserved; on++) {
        struct reserved *each = &job->on[on];
        if (placement != KNOWN_IDLE || is_free(s, each->node)) each->tried = 1, job->tried++;
        if (placement != ADAPTIVE) add_load(s, each->node, each->sent);
    }
}

static void reserve(int number, int first) {
    struct job *job = &jobs[number];
    sent[RESERVED] += job->reserved - first;
    if (job->is_open) remember_reserved(job, first);
    tell_peers(job->scheduler);
    send_message(RESERVATIONS, number, first, job->reserved);
}

static void submit(int number) {
    struct job *job = &jobs[number];
    job->scheduler = number % scheduler_count;
    place(job);
    if (placement == EAGLE && !job->is_long) {
        struct scheduler *s = &schedulers[job->scheduler];
        int entry = NEW(hungries);
        hungries.at[entry] = (struct hungry){0, number};
        if (s->hungry_first) hungries.at[s->hungry_last].next = entry;
        else s->hungry_first = entry;
        s->hungry_last = entry;
    }
    reserve(number, 0);
}

static void feed(int scheduler, int node, int net) {
    struct scheduler *s = &schedulers[scheduler];
    int entry;
    if (placement != EAGLE || net >= 0) return;
    while ((entry = s->hungry_first) && jobs[hungries.at[entry].job].bound ==
                                            jobs[hungries.at[entry].job].tasks) {
        s->hungry_first = hungries.at[entry].next;
        FREE(hungries, entry);
    }
    if (!entry) return;
    int number = hungries.at[entry].job, first = jobs[number].reserved;
    for (int on = 0; on < first; on++)
        if (jobs[number].on[on].node == node && jobs[number].on[on].left > 0) return;
    reserve_on(&jobs[number], &node, 1, 1);
    reserve(number, first);
}

/* A scheduler hears that long tasks have ended. */
static void hear_run(int run) {
    if (runs.at[run].heard) return;
    runs.at[run].heard = 1;
    add_load(&schedulers[jobs[runs.at[run].job].scheduler], runs.at[run].node, -1);
}

static void hear_runs(int first) {
    for (int run = first; run; run = runs.at[run].next) hear_run(run);
}

static void end_job(int number) {
    struct job *job = &jobs[number];
    for (int run = job->runs; run; run = runs.at[run].more) hear_run(run);
    free(job->on);
    job->on = NULL;
    job->room = 0;
}

static void remember_asked(struct job *job, const struct ask *ask) {
    struct scheduler *s = &schedulers[job->scheduler];
    if (ask->tasks) {
        if (placement != ADAPTIVE) add_load(s, ask->node, placement == KNOWN_IDLE ? ask->tasks : 0);
        if (placement != EAGLE && job->on[ask->on].tried) {
            double took_s = now - job->reserved_at;
            s->round_trip_s = fmin(s->round_trip_s, fmax(took_s, 1e-6));
            job->prompt += took_s <= 1.5 * s->round_trip_s;
        }
    }
    if (job->bound < job->tasks) return;
    if (job->tried && placement != EAGLE) note_idle_share(s, job);
    job->tried = 0;
}

static void answer(int index) {
    struct ask *ask = &asks.at[index];
    struct job *job = &jobs[ask->job];
    struct scheduler *s = &schedulers[job->scheduler];
    int all_bound = job->bound == job->tasks;
    hear_runs(ask->runs);
    if (placement == KNOWN_IDLE) told_level(s, ask->node, ask->net, ask->stamp);
    if (placement == JIQ) {
        unlist(s, ask->node);
        s->of[ask->node].load = ask->net < 0 ? -ask->net : 0;
    }
    if (job->last_s && !job->on) ask->tasks = 0; /* it has ended long since */
    else if (job->on[ask->on].left < 0) { /* answered by the cancellation */
        if (ask->net < 0) feed(job->scheduler, ask->node, ask->net);
        asks.at[index].drained = -1;
        tell_peers(job->scheduler);
        if (!asks.at[index].live) FREE(asks, index);
        return;
    } else {
        struct reserved *on = &job->on[ask->on];
        int offered = job->is_bound ? on->left : job->tasks - job->bound;
        ask->tasks = ask->count < offered ? ask->count : offered;
        job->bound += ask->tasks;
        on->left -= ask->tasks;
        offered -= ask->tasks;
        if (!offered || on->left < 0) on->left = 0;
        ask->drained = !offered;
    }
    if (job->last_s && !job->on) ask->drained = 1;
    if (placement == JIQ) {
        s->of[ask->node].load -= ask->tasks;
        if (s->of[ask->node].load > 0) list_last(s, ask->node);
        else s->of[ask->node].load = 0;
    }
    if (job->is_open && !all_bound) remember_asked(job, ask);
    ask->waiting = job->tasks - job->bound;
    int tasks = ask->tasks, scheduler = job->scheduler, node = ask->node, net = ask->net;
    sent[ANSWERED]++;
    send_message(ANSWER, index, 0, 0);
    if (!all_bound && job->bound == job->tasks) {
        int cancelled = 0;
        for (int on = 0; on < job->reserved; on++) {
            struct reserved *each = &job->on[on];
            if (job->is_open && placement != ADAPTIVE) /* what it still holds is withdrawn */
                add_load(s, each->node, -each->left);
            if (each->left > 0) each->left = -1, cancelled++;
        }
        sent[CANCELLED] += cancelled;
        if (cancelled) send_message(CANCEL, (int)(job - jobs), 0, job->reserved);
    }
    if (!tasks) feed(scheduler, node, net);
    tell_peers(scheduler);
}

/* ---- nodes ------------------------------------------------------------------------------------- */
static void unqueue(struct node *node, int before, int held) {
    int next = helds.at[held].next;
    if (before) helds.at[before].next = next;
    else node->first = next;
    if (!next) node->last = before;
    node->queued -= helds.at[held].count;
    FREE(helds, held);
}

static void unqueue_job(struct node *node, int job) {
    for (int before = 0, held = node->first; held; before = held, held = helds.at[held].next)
        if (helds.at[held].job == job) {
            unqueue(node, before, held);
            return;
        }
}

static void queue_up(int number, int on) {
    struct node *node = &nodes[jobs[number].on[on].node];
    int count = jobs[number].on[on].sent, waiting = jobs[number].tasks - jobs[number].bound, held;
    node->queued += count;
    for (held = node->first; held; held = helds.at[held].next)
        if (helds.at[held].job == number) { /* fed once more */
            helds.at[held].count += count;
            helds.at[held].waiting = waiting;
            return;
        }
    held = NEW(helds);
    helds.at[held] = (struct held){0, number, on, count, waiting, 0, now};
    if (node->first) helds.at[node->last].next = held;
    else node->first = held;
    node->last = held;
}

/* What the node has to tell a scheduler of ends of its long tasks. */
static int unreported(struct node *node, int scheduler) {
    int first = 0, *from = &node->unreported;
    while (*from) {
        int run = *from;
        if (jobs[runs.at[run].job].scheduler == scheduler) {
            *from = runs.at[run].next;
            runs.at[run].next = first;
            first = run;
        } else from = &runs.at[run].next;
    }
    return first;
}

static void ask_for(int at, int number, int on, int count, int waiting) {
    struct node *node = &nodes[at];
    int index = NEW(asks);
    asks.at[index] = (struct ask){node->asks, number, at, on, count, 0, 0, 0, waiting, 0, 1, 0};
    node->asks = index;
    sent[ASKED]++;
    asks.at[index].net = node->queued - node->room - count;
    asks.at[index].stamp = ++node->stamp;
    asks.at[index].runs = unreported(node, jobs[number].scheduler);
    send_message(ASK, index, 0, 0);
}

/* The reservation that is first under SRPT, and by how many slots: one that has waited for long,
 * else one of the job with the least work left. */
static int first_of(const struct node *node) {
    int best = 0, best_late = 0;
    double best_rank = 0;
    for (int held = node->first; held; held = helds.at[held].next) {
        const struct held *each = &helds.at[held];
        if (each->waiting <= each->asked) continue;
        double task_s = jobs[each->job].estimate_s;
        int late = now - each->since > PATIENCE * task_s;
        double rank = late ? each->since : task_s * each->waiting;
        if (!best || late > best_late || (late == best_late && rank < best_rank))
            best = held, best_late = late, best_rank = rank;
    }
    return best;
}

static void start_next(int at) {
    struct node *node = &nodes[at];
    int asked = 0;
    while (node->room && node->first) {
        int held = policy == SRPT ? first_of(node) : node->first, count;
        if (!held) break;
        struct held *each = &helds.at[held];
        if (policy == SRPT) {
            count = 1;
            if (!each->next && node->first == held) { /* nothing else may be chosen after it */
                count = each->waiting - each->asked;
                if (count > node->room) count = node->room;
            }
            each->asked += count;
            each->since = now;
        } else count = each->count < node->room ? each->count : node->room;
        int number = each->job, on = each->on, waiting = each->waiting;
        node->room -= count;
        if (policy == FIFO) {
            if (each->count == count) unqueue(node, 0, held);
            else each->count -= count, node->queued -= count;
        }
        ask_for(at, number, on, count, waiting);
        asked = 1;
    }
    if (node->idle_to >= 0) {
        if (!asked && node->room) {
            sent[IDLE]++;
            int index = NEW(asks); /* carries what a request would */
            asks.at[index] = (struct ask){.node = at, .net = node->queued - node->room,
                .stamp = ++node->stamp, .runs = unreported(node, node->idle_to)};
            send_message(FELL_IDLE, node->idle_to, index, 0);
        }
        if (asked || node->room) node->idle_to = -1;
    }
}

static void release(struct node *node, int index) {
    struct ask *ask = &asks.at[index];
    int *from = &node->asks;
    while (*from != index) from = &asks.at[*from].next;
    *from = ask->next;
    ask->live = 0;
    node->room += ask->count;
    for (int held = policy == SRPT ? node->first : 0; held; held = helds.at[held].next)
        if (helds.at[held].job == ask->job) {
            helds.at[held].asked -= ask->count;
            if (helds.at[held].asked < 0) helds.at[held].asked = 0;
        }
}

static void cancel(int number, int reserved) {
    struct job *job = &jobs[number];
    for (int on = 0; job->on && on < reserved; on++) {
        if (job->on[on].left >= 0) continue;
        int at = job->on[on].node;
        struct node *node = &nodes[at];
        unqueue_job(node, number);
        int freed = 0;
        for (int index = node->asks, next; index; index = next) {
            next = asks.at[index].next;
            if (asks.at[index].job != number) continue;
            release(node, index);
            if (asks.at[index].drained < 0) FREE(asks, index); /* its scheduler has it already */
            freed = 1;
        }
        if (freed) start_next(at);
    }
}

static void start_task(int number, int at) {
    struct job *job = &jobs[number];
    double end_s = now + local_s + job->times_s[job->started];
    int run = 0;
    if (job->is_long) {
        run = NEW(runs);
        runs.at[run] = (struct run){0, number, at, 0, job->runs};
        job->runs = run;
    }
    if (heartbeat_s > 0)
        for (int slot = 0; slot < slots; slot++)
            if (!nodes[at].since[slot]) { nodes[at].since[slot] = now; break; }
    push_end((struct end){end_s + local_s, now, number, at, run});
    if (end_s + delay_s > job->last_s) job->last_s = end_s + delay_s;
    /* Which of its tasks starts first does not matter: their times are drawn alike. */
    if (++job->started == job->tasks)
        push_end((struct end){job->last_s + delay_s, 0, number, -1, 0});
}

static void get_answer(int index) {
    struct ask ask = asks.at[index];
    struct node *node = &nodes[ask.node];
    node->room -= ask.tasks;
    if (ask.live) release(node, index);
    FREE(asks, index);
    if (ask.drained) {
        if (policy == SRPT) unqueue_job(node, ask.job);
    } else if (policy == SRPT)
        for (int held = node->first; held; held = helds.at[held].next)
            if (helds.at[held].job == ask.job) helds.at[held].waiting = ask.waiting;
    for (int task = 0; task < ask.tasks; task++) start_task(ask.job, ask.node);
    start_next(ask.node);
}

static void end_task(struct end end) {
    struct node *node = &nodes[end.node];
    if (wants_levels()) node->idle_to = jobs[end.job].scheduler;
    if (end.run) {
        runs.at[end.run].next = node->unreported;
        node->unreported = end.run;
    }
    for (int slot = 0; heartbeat_s > 0 && slot < slots; slot++)
        if (node->since[slot] == end.began_s) { node->since[slot] = 0; break; }
    node->room++;
    start_next(end.node);
}

/* Nodes tell all schedulers for how long tasks have run, and which have ended. */
static void beat(void) {
    sent[HEARTBEATS] += (double)node_count * scheduler_count;
    for (int at = 0; placement == EAGLE && at < node_count; at++) {
        double longest_s = 0;
        for (int slot = 0; slot < slots; slot++)
            if (nodes[at].since[slot]) longest_s = fmax(longest_s, now - nodes[at].since[slot]);
        if (longest_s <= heartbeat_s) longest_s = 0;
        for (int number = 0; number < scheduler_count; number++) {
            struct scheduler *s = &schedulers[number];
            s->of[at].told = s->has_mean && longest_s > TOLD_TIMES * exp(s->mean_log_s);
        }
        hear_runs(nodes[at].unreported);
        nodes[at].unreported = 0;
    }
}

static void handle(struct message message) {
    int index = message.more;
    switch (message.kind) {
    case SUBMIT: submit(message.subject); break;
    case RESERVATIONS:
        for (int on = index; on < message.extra; on++) {
            queue_up(message.subject, on);
            start_next(jobs[message.subject].on[on].node);
        }
        break;
    case ASK: answer(message.subject); break;
    case ANSWER: get_answer(message.subject); break;
    case CANCEL: cancel(message.subject, message.extra); break;
    case NEWS: hear_news(message.subject, index); break;
    case FELL_IDLE: {
        struct ask idle = asks.at[index];
        struct scheduler *s = &schedulers[message.subject];
        FREE(asks, index);
        hear_runs(idle.runs);
        if (placement == KNOWN_IDLE) told_level(s, idle.node, idle.net, idle.stamp);
        if (placement == JIQ && idle.net < 0) {
            unlist(s, idle.node);
            s->of[idle.node].load = -idle.net;
            list_last(s, idle.node);
        }
        feed(message.subject, idle.node, idle.net);
        tell_peers(message.subject);
        break;
    }
    }
}

/* ---- the simulation ---------------------------------------------------------------------------- */
static void run(void) {
    int submitted = 0, tick = 1, beats = 0;
    while (submitted < job_count || ring_count || end_count) {
        double next_s = ring_count ? ring[ring_first].at_s : INFINITY;
        int what = 0;
        if (submitted < job_count && jobs[submitted].at_s < next_s)
            next_s = jobs[submitted].at_s, what = 1;
        if (end_count && ends[0].at_s < next_s) next_s = ends[0].at_s, what = 2;
        if (scheduler_count > 1 && placement == KNOWN_IDLE && next_s > tick * TICK_S) {
            now = tick++ * TICK_S;
            for (int number = 0; number < scheduler_count; number++) tell_peers(number);
            continue;
        }
        if (heartbeat_s > 0 && next_s > (beats + 1) * heartbeat_s &&
            (beats + 1) * heartbeat_s <= jobs[job_count - 1].at_s) {
            now = ++beats * heartbeat_s;
            beat();
            continue;
        }
        now = next_s;
        if (what == 1) send_message(SUBMIT, submitted++, 0, 0);
        else if (what == 2) {
            struct end end = pop_end();
            if (end.node >= 0) end_task(end);
            else end_job(end.job);
        } else {
            struct message message = ring[ring_first];
            ring_first = (ring_first + 1) & (ring_room - 1);
            ring_count--;
            handle(message);
        }
    }
}

/* ---- an omniscient scheduler: the next task on the first free slot ------------------------------ *
 * Of the oldest job, or under SRPT of the one whose tasks that wait are estimated to take least. */
struct left { double rank; int job; };
static struct left *waiting;
static double *free_at;
static int waiting_count;

static void sift_slot(double end_s) { /* the first slot is free again then */
    size_t at = 0, count = (size_t)node_count * (size_t)slots;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && free_at[child + 1] < free_at[child]) child++;
        if (free_at[child] >= end_s) break;
        free_at[at] = free_at[child];
        at = child;
    }
    free_at[at] = end_s;
}

static int goes_before(struct left a, struct left b) {
    return a.rank < b.rank || (a.rank == b.rank && a.job < b.job);
}

static void add_waiting(struct left added) {
    int at = waiting_count++;
    while (at && goes_before(added, waiting[(at - 1) / 2])) {
        waiting[at] = waiting[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    waiting[at] = added;
}

static void drop_first_waiting(void) {
    struct left last = waiting[--waiting_count];
    int at = 0;
    for (;;) {
        int child = 2 * at + 1;
        if (child >= waiting_count) break;
        if (child + 1 < waiting_count && goes_before(waiting[child + 1], waiting[child])) child++;
        if (!goes_before(waiting[child], last)) break;
        waiting[at] = waiting[child];
        at = child;
    }
    waiting[at] = last;
}

/* Starts tasks on slots that are free by a time, not before another. */
static void start_central(double until_s, double since_s) {
    while (waiting_count && free_at[0] <= until_s) {
        struct job *job = &jobs[waiting[0].job]; /* with less to do than before, it stays first */
        double end_s = fmax(since_s, free_at[0]) + job->times_s[job->tasks - ++job->started];
        sift_slot(end_s);
        job->last_s = fmax(job->last_s, end_s + delay_s);
        if (job->started == job->tasks) drop_first_waiting();
        else if (policy == SRPT) waiting[0].rank = job->estimate_s * (job->tasks - job->started);
    }
}

static void run_central(void) {
    free_at = zeroed((size_t)node_count * (size_t)slots, sizeof *free_at);
    waiting = sized(NULL, (size_t)job_count, sizeof *waiting);
    for (int i = 0; i < job_count; i++) {
        double reached_s = jobs[i].at_s + 2 * delay_s;
        start_central(reached_s, 0); /* of jobs that waited: there was no free slot before */
        add_waiting((struct left){policy == SRPT ? jobs[i].estimate_s * jobs[i].tasks : i, i});
        start_central(reached_s, reached_s);
    }
    start_central(INFINITY, 0);
    sent[RESERVED] = 0;
    for (int i = 0; i < job_count; i++) sent[RESERVED] += jobs[i].tasks; /* a message each */
}

static int named(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(name, names[i])) return i;
    fprintf(stderr, "unknown: %s\n", name);
    exit(2);
}

static double *read_doubles(size_t count) {
    double *values = sized(NULL, count, sizeof *values);
    if (fread(values, sizeof *values, count, stdin) != count) {
        fprintf(stderr, "jobs are missing\n");
        exit(2);
    }
    return values;
}

int main(int count, char **argument) {
    const char *const placements[] = {"central", "random", "sparrow", "adaptive", "known_idle", "jiq",
                                      "eagle"};
    const char *const policies[] = {"fifo", "srpt"};
    if (count != 12) { fprintf(stderr, "eleven arguments are needed\n"); return 2; }
    placement = named(argument[1], placements, 7);
    policy = named(argument[2], policies, 2);
    node_count = atoi(argument[3]);
    slots = atoi(argument[4]);
    scheduler_count = atoi(argument[5]);
    ratio = atof(argument[6]);
    state = strtoull(argument[7], NULL, 10) * 0x2545F4914F6CDD1Dull;
    delay_s = atof(argument[8]);
    local_s = atof(argument[9]);
    heartbeat_s = atof(argument[10]);
    job_count = atoi(argument[11]);
    double *at_s = read_doubles((size_t)job_count), *estimates_s = read_doubles((size_t)job_count);
    double *task_counts = read_doubles((size_t)job_count), task_count = 0;
    for (int i = 0; i < job_count; i++) task_count += task_counts[i];
    const double *times_s = read_doubles((size_t)task_count);
    jobs = zeroed((size_t)job_count, sizeof *jobs);
    for (int i = 0; i < job_count; i++) {
        jobs[i].at_s = at_s[i], jobs[i].estimate_s = estimates_s[i];
        jobs[i].tasks = (int)task_counts[i], jobs[i].times_s = times_s;
        times_s += jobs[i].tasks;
    }
    nodes = zeroed((size_t)node_count, sizeof *nodes);
    schedulers = zeroed((size_t)scheduler_count, sizeof *schedulers);
    order = sized(NULL, (size_t)node_count, sizeof *order);
    chosen = zeroed((size_t)node_count, sizeof *chosen);
    double *since = zeroed((size_t)node_count * (size_t)slots, sizeof *since);
    for (int i = 0; i < node_count; i++) {
        order[i] = i;
        nodes[i].room = slots, nodes[i].idle_to = -1, nodes[i].since = since + (size_t)i * slots;
    }
    for (int number = 0; number < scheduler_count; number++) {
        struct scheduler *s = &schedulers[number];
        s->of = zeroed((size_t)node_count + 1, sizeof *s->of);
        for (int i = 0; i < node_count; i++) s->of[i].load = placement == KNOWN_IDLE ? -1 : 0;
        s->of[node_count].before = s->of[node_count].after = node_count;
        s->round_trip_s = INFINITY, s->idle_share = 0.5;
    }
    if (placement == CENTRAL) run_central();
    else run();
    double *response_s = at_s;
    for (int i = 0; i < job_count; i++) response_s[i] = jobs[i].last_s - jobs[i].at_s;
    fwrite(response_s, sizeof *response_s, (size_t)job_count, stdout);
    fwrite(sent, sizeof *sent, SENT_KINDS, stdout);
    return 0;
}
