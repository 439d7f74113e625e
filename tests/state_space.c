#include "tests/state_space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPACE_FIRST = 1 << 16 };

typedef struct {
    uint64_t a, b; /* hash; 0, 0: a free place */
    uint32_t state;
} place_t;

struct state_space {
    place_t *places; /* open addressing; n_places is a power of two */
    uint64_t n_places;
    uint32_t *from, *action;
    uint8_t *goal;
    uint32_t n, cap;
    uint32_t *edges; /* pairs */
    uint64_t n_edges, cap_edges;
};

static void *grown(void *old, size_t bytes)
{
    void *p = realloc(old, bytes);
    if (!p) {
        fprintf(stderr, "state space: no memory for %zu bytes\n", bytes);
        abort();
    }
    return p;
}

static void states_grow(state_space_t *s)
{
    s->cap = s->cap ? 2 * s->cap : SPACE_FIRST;
    s->from = grown(s->from, s->cap * sizeof *s->from);
    s->action = grown(s->action, s->cap * sizeof *s->action);
    s->goal = grown(s->goal, s->cap);
}

static place_t *place_of(place_t *places, uint64_t n, uint64_t a, uint64_t b)
{
    uint64_t i = a & (n - 1);
    while ((places[i].a != a || places[i].b != b) && (places[i].a || places[i].b))
        i = (i + 1) & (n - 1);
    return &places[i];
}

static void places_grow(state_space_t *s)
{
    uint64_t n = s->n_places ? 2 * s->n_places : 4 * SPACE_FIRST;
    place_t *places = grown(NULL, n * sizeof *places);
    memset(places, 0, n * sizeof *places);
    for (uint64_t i = 0; i < s->n_places; i++)
        if (s->places[i].a || s->places[i].b)
            *place_of(places, n, s->places[i].a, s->places[i].b) = s->places[i];
    free(s->places);
    s->places = places;
    s->n_places = n;
}

state_space_t *space_new(void)
{
    state_space_t *s = grown(NULL, sizeof *s);
    memset(s, 0, sizeof *s);
    states_grow(s);
    places_grow(s);
    return s;
}

void space_free(state_space_t **space)
{
    state_space_t *s = *space;
    if (!s)
        return;
    free(s->places);
    free(s->from);
    free(s->action);
    free(s->goal);
    free(s->edges);
    free(s);
    *space = NULL;
}

/* Two multiply-and-fold hashes with constants of their own. */
static void hash_bytes(const uint8_t *bytes, size_t n, uint64_t *a, uint64_t *b)
{
    uint64_t x = 0x9e3779b97f4a7c15ull + n, y = 0xc2b2ae3d27d4eb4full - n;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = 0;
        memcpy(&v, bytes + i, n - i < 8 ? n - i : 8);
        x = (x ^ v) * 0xff51afd7ed558ccdull;
        x ^= x >> 32;
        y = (y + v) * 0xc4ceb9fe1a85ec53ull;
        y ^= y >> 29;
    }
    *a = x;
    *b = y | 1; /* never 0, 0 */
}

uint32_t space_state(state_space_t *s, const void *bytes, size_t n, uint32_t from, uint32_t action,
                     int *fresh)
{
    uint64_t a, b;
    hash_bytes(bytes, n, &a, &b);
    place_t *p = place_of(s->places, s->n_places, a, b);
    *fresh = p->a == 0 && p->b == 0;
    if (!*fresh)
        return p->state;
    if (s->n == s->cap)
        states_grow(s);
    *p = (place_t){a, b, s->n};
    s->from[s->n] = from;
    s->action[s->n] = action;
    s->goal[s->n] = 0;
    uint32_t state = s->n++;
    if (2 * (uint64_t)s->n > s->n_places)
        places_grow(s);
    return state;
}

void space_edge(state_space_t *s, uint32_t from, uint32_t to)
{
    if (s->n_edges == s->cap_edges) {
        s->cap_edges = s->cap_edges ? 2 * s->cap_edges : SPACE_FIRST;
        s->edges = grown(s->edges, 2 * s->cap_edges * sizeof *s->edges);
    }
    s->edges[2 * s->n_edges] = from;
    s->edges[2 * s->n_edges + 1] = to;
    s->n_edges++;
}

void space_goal(state_space_t *s, uint32_t state)
{
    s->goal[state] = 1;
}

uint32_t space_states(const state_space_t *s)
{
    return s->n;
}

uint64_t space_edges(const state_space_t *s)
{
    return s->n_edges;
}

/* Backwards from the goals, over the edges sorted by where they lead. */
uint32_t space_stuck(const state_space_t *s, uint32_t *first)
{
    uint64_t *start = grown(NULL, (s->n + 2) * sizeof *start);
    uint32_t *into = grown(NULL, (s->n_edges + 1) * sizeof *into);
    uint32_t *todo = grown(NULL, (s->n + 1) * sizeof *todo);
    uint8_t *good = grown(NULL, s->n + 1);
    uint32_t n_todo = 0, stuck = 0;
    memset(start, 0, (s->n + 2) * sizeof *start);
    for (uint64_t e = 0; e < s->n_edges; e++)
        start[s->edges[2 * e + 1] + 2]++;
    for (uint32_t i = 2; i < s->n + 2; i++)
        start[i] += start[i - 1];
    for (uint64_t e = 0; e < s->n_edges; e++)
        into[start[s->edges[2 * e + 1] + 1]++] = s->edges[2 * e];
    memcpy(good, s->goal, s->n);
    for (uint32_t i = 0; i < s->n; i++)
        if (good[i])
            todo[n_todo++] = i;
    while (n_todo > 0) {
        uint32_t at = todo[--n_todo];
        for (uint64_t e = start[at]; e < start[at + 1]; e++)
            if (!good[into[e]]) {
                good[into[e]] = 1;
                todo[n_todo++] = into[e];
            }
    }
    for (uint32_t i = s->n; i-- > 0;)
        if (!good[i]) {
            *first = i;
            stuck++;
        }
    free(start);
    free(into);
    free(todo);
    free(good);
    return stuck;
}

uint32_t space_path(const state_space_t *s, uint32_t state, uint32_t *actions, uint32_t most)
{
    uint32_t n = 0;
    for (uint32_t i = state; s->from[i] != UINT32_MAX; i = s->from[i])
        n++;
    uint32_t at = n;
    for (uint32_t i = state; s->from[i] != UINT32_MAX; i = s->from[i])
        if (--at < most)
            actions[at] = s->action[i];
    return n;
}
