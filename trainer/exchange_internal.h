/* Inside of the sums over devices: what exchange*.c share. Private to them and their tests. */
#ifndef SLUICE_TRAINER_EXCHANGE_INTERNAL_H
#define SLUICE_TRAINER_EXCHANGE_INTERNAL_H

#include "trainer/events.h"
#include "trainer/exchange.h"
#include "trainer/trainer.h"

enum {
    EXCHANGE_EVENT_STATS = EVENTS_EXCHANGE + EXCHANGE_BUCKETS, /* the buckets' come before it */
    EXCHANGE_EVENT_FIRST,
    EXCHANGE_EVENT_END,
    EXCHANGE_LOOK_MS = 100,
    EXCHANGE_LATE_MS = 2000, /* a look this late: we were stopped, perhaps all of us */
    EXCHANGE_CLOSE_S = 5,    /* for a communicator to end; 0.5 s measured (facts/gpu.md) */
    EXCHANGE_PEERS_S = 3,    /* for the others' last sums before that */
    EXCHANGE_PAIR_S = 3,     /* for two devices alone to connect, and again to add */
};
_Static_assert((int)EXCHANGE_EVENT_END < (int)EVENTS_EXCHANGE_END, "events of the exchange");

struct exchange {
    trainer_t *t;
    exchange_bucket_t bucket[EXCHANGE_BUCKETS];
    int32_t buckets;
    int32_t device[WIRE_RANKS]; /* of each rank; DEVICE_CPU */

    int connected;    /* the communicator is ready: sums go over the devices */
    int has_comm;     /* comm_open was called and comm_close was not */
    int failed;       /* a sum or a wait for it has */
    int stuck;        /* comm_close did not return: the device is not ours any more */
    board_gpu_t *gpu; /* pinned; NULL until then */

    int active;   /* between begin and finish */
    int32_t next; /* first bucket that is not yet given to the device */

    int32_t slot;      /* being recorded, or -1 */
    uint32_t recorded; /* sums in it so far */
    uint32_t sums_of[K_GRAPHS];

    /* exchange_check: whom it watches (-1: this rank's device, or all), what it has seen of them */
    uint64_t looked_ns, since_ns, sign;
    int32_t watched;

    double
        settle_s; /* for a call to be given to the device; 0: init_timeout, later the collectives' */
    float probe[MEMORY_EXTRA]; /* of the first sum: outlives its copies */
};

/* exchange.c. One sum on stream s, counted before and behind; waits only for the call itself. */
int exchange_sum(struct exchange *x, k_stream_t s, k_at at, uint64_t count, int doubles);
/* Keeps the device's sentence: "rank 1 (GPU 1): what: ...". 0 passes. */
int exchange_device(struct exchange *x, int rc, const char *what);
/* Waits until the communicator's present call is done, for at most `seconds`. 1: it is not. */
int exchange_settle(struct exchange *x, double seconds);

/* exchange_start.c. "rank 1 (GPU 3)" */
const char *exchange_who(const struct exchange *x, uint32_t rank, char text[48]);
/* Ends the communicator in a helper thread; 1: it hangs (stuck is set). */
int exchange_end(struct exchange *x);

/* exchange_first.c. The probe through the present communicator of `ranks`, of which this is number
 * `rank`: 0, 1 when it is not done after `seconds`, or the error. */
int exchange_first_sum(struct exchange *x, uint32_t rank, uint32_t ranks, double seconds);

/* exchange_pairs.c. After a start that failed and whose communicators were ended, on all ranks: which
 * pairs of devices do not work even alone, as half a sentence; "" for two ranks. */
int exchange_pairs(struct exchange *x, char *text, size_t bytes);

#endif
