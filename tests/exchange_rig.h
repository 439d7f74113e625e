/* A rank that only adds up: worker, graph, gradients and their collective, on any device. For tests of
 * the sums over devices.
 *
 * fake_gpus is a CPU that claims to work while the host goes on and to have a communicator: its sums go
 * through a collective of its own, at once. It keeps what it was asked in fake.log, and can be told to
 * misbehave. One rank a process. */
#ifndef SLUICE_TESTS_EXCHANGE_RIG_H
#define SLUICE_TESTS_EXCHANGE_RIG_H

#include "tests/trainer_rig.h"

typedef struct {
    const char *model;
    const k_ops_t *ops;
    int32_t device; /* ordinal; DEVICE_CPU */
} exchange_spec_t;

typedef struct {
    worker_t w;
    trainer_t t;
    k_at stats; /* 64 doubles behind the gradients and their extra values */
} exchange_rig_t;

/* Memory of ranks that a test forks. */
typedef struct {
    rig_shared_t s;
    int second_fd; /* memory of the fake devices' own sums */
} exchange_shared_t;
typedef int (*exchange_rank_fn)(const exchange_shared_t *s, uint32_t rank, uint32_t ranks);
/* Runs fn in a process for each rank; fails where one does not return 0, or not within the time. */
enum { EXCHANGE_RIG_RANKS = 3, EXCHANGE_RIG_TIME_OUT_S = 120 };
void exchange_run_ranks(uint32_t ranks, exchange_rank_fn fn);

/* Everything before exchange_open. */
int exchange_rig_open(const rig_shared_t *s, uint32_t rank, uint32_t ranks,
                      const exchange_spec_t *spec, exchange_rig_t *r);
/* exchange_close and the rest; a device that the exchange gave up stays. */
void exchange_rig_close(exchange_rig_t *r);
/* One shared step: gradient i of this rank is exchange_part(rank, i, step); the hooks of a backward
 * pass; enqueued on the device, not waited for. */
float exchange_part(uint32_t rank, uint64_t i, uint32_t step);
int exchange_rig_fill(exchange_rig_t *r, uint32_t step);
int exchange_rig_enqueue(exchange_rig_t *r);
/* 0 if all floats are the sums over the ranks; else 1, and it has printed where not. */
int exchange_rig_check(exchange_rig_t *r, uint32_t step);

typedef enum { FAKE_RECORD = 1, FAKE_AFTER, FAKE_TICK, FAKE_SUM } fake_call_t;
typedef struct {
    fake_call_t call;
    int32_t event; /* RECORD, AFTER */
    k_stream_t stream;
    k_at at; /* SUM */
    uint64_t count;
    int32_t op; /* fake.op when it was asked */
} fake_entry_t;

enum { FAKE_LOG = 4096 };
typedef struct {
    collective_t *coll; /* the sums go through; the test opens it */
    uint32_t rank;
    int polls;    /* comm_poll says "in progress" so often after each call */
    int never[2]; /* ranks that never connect to each other; both -1: none */
    int heavy;    /* ... but in a large sum; more than two fail at once */
    int broken;   /* comm_poll fails */
    int hangs;    /* comm_close does not return */
    int32_t op;   /* for the log */
    fake_entry_t log[FAKE_LOG];
    int logged;
    /* private */
    int pending, members, number, other, closed, large;
} fake_t;
extern fake_t fake;
const k_ops_t *fake_gpus(void);

#endif
