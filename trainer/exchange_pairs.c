/* Which connections do not work: after a start that failed as a whole, each pair of ranks makes a
 * communicator of its own and adds up the probe, with a deadline. As in a tournament, every round
 * pairs everybody with somebody else, so n ranks need n - 1 rounds (n if n is odd). What the hosts
 * tell each other goes through shared memory and needs no device. */
#include "trainer/exchange_internal.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a rank, in sums over the hosts. */
typedef struct {
    struct exchange *x;
    uint32_t ranks;
    int able; /* its last communicator has ended */
    double able_all[WIRE_RANKS];
    double result[WIRE_RANKS * WIRE_RANKS]; /* [low][high]: failures seen, of its two */
} pairs_t;

/* Who meets `rank` in a round, or `ranks`: nobody. The last seat stays, the others move around it. */
static uint32_t opponent(uint32_t rank, uint32_t round, uint32_t ranks)
{
    const uint32_t seats = ranks + ranks % 2, moving = seats - 1;
    if (rank == moving) /* 2 * i = round (mod moving): seats / 2 is 1 / 2 there */
        return round * (seats / 2) % moving;
    uint32_t other = (round + moving - rank) % moving;
    return other == rank ? (moving < ranks ? moving : ranks) : other;
}

/* The probe between two: 0 it works, 1 it does not. A negative code ends the test. */
static int try_pair(struct exchange *x, const uint8_t id[K_COMM_ID], uint32_t number)
{
    trainer_t *t = x->t;
    x->has_comm = 1;
    int rc = exchange_device(x, t->ops->comm_open(t->dev, id, (int)number, 2), "pair");
    if (rc == 0)
        rc = exchange_settle(x, EXCHANGE_PAIR_S);
    if (rc == 0)
        rc = exchange_first_sum(x, number, 2, EXCHANGE_PAIR_S);
    exchange_end(x);
    return rc == ERR_GONE ? rc : rc != 0;
}

static int share_able(pairs_t *p)
{
    memset(p->able_all, 0, sizeof p->able_all);
    p->able_all[p->x->t->rank] = p->able;
    return collective_sum(p->x->t->coll, p->able_all, p->ranks);
}

/* Every pair's lower rank gives out an identity; all ranks hear all of them. */
static int share_ids(pairs_t *p, uint32_t round, uint8_t id[K_COMM_ID])
{
    trainer_t *t = p->x->t;
    for (uint32_t r = 0; r < p->ranks; r++) {
        uint8_t word[K_COMM_ID] = {0};
        uint32_t other = opponent(r, round, p->ranks);
        if (other >= p->ranks || other < r)
            continue;
        if (r == t->rank && p->able && t->ops->comm_id(t->dev, word) < 0)
            p->able = 0;
        int rc = collective_broadcast(t->coll, word, sizeof word, r);
        if (rc < 0)
            return rc;
        if (r == t->rank || other == t->rank)
            memcpy(id, word, sizeof word);
    }
    return share_able(p);
}

static int play_round(pairs_t *p, uint32_t round)
{
    const uint32_t rank = p->x->t->rank, other = opponent(rank, round, p->ranks);
    uint8_t id[K_COMM_ID] = {0};
    int rc = share_ids(p, round, id);
    if (rc < 0 || other >= p->ranks)
        return rc;
    const uint32_t low = rank < other ? rank : other, high = rank < other ? other : rank;
    int bad = 1;
    if (p->able_all[low] > 0 && p->able_all[high] > 0) {
        bad = try_pair(p->x, id, rank == low ? 0 : 1);
        if (bad < 0)
            return bad;
        p->able = !p->x->stuck;
    }
    p->result[low * p->ranks + high] = bad;
    return 0;
}

static void describe(const pairs_t *p, char *text, size_t bytes)
{
    char a[48], b[48];
    size_t used = 0;
    int n = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < p->ranks; i++)
        for (uint32_t k = i + 1; k < p->ranks; k++) {
            if (p->result[i * p->ranks + k] <= 0 || used + 1 >= bytes)
                continue;
            int wrote = snprintf(text + used, bytes - used, "%s%s with %s",
                                 n++ ? ", " : "tried in pairs, these do not work: ",
                                 exchange_who(p->x, i, a), exchange_who(p->x, k, b));
            used += wrote > 0 ? (size_t)wrote : 0;
        }
    if (n == 0)
        snprintf(text, bytes, "tried in pairs, all of them work");
}

int exchange_pairs(struct exchange *x, char *text, size_t bytes)
{
    trainer_t *t = x->t;
    text[0] = '\0';
    if (t->ranks == 2) /* the whole was the pair */
        return 0;
    pairs_t *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(ERR_ENV, "rank %u: out of memory", t->rank);
    p->x = x;
    p->ranks = t->ranks;
    p->able = !x->stuck;
    const uint32_t rounds = t->ranks - 1 + t->ranks % 2;
    int rc = 0;
    for (uint32_t round = 0; rc == 0 && round < rounds; round++)
        rc = play_round(p, round);
    if (rc == 0)
        rc = collective_sum(t->coll, p->result, t->ranks * t->ranks);
    if (rc == 0)
        describe(p, text, bytes);
    free(p);
    return rc;
}
