/* Named points at which a test ends or stops a process: one at every transition that a death could
 * cut in two (claim word, slot, fence, checkpoint).
 *
 * Only builds with KILL_POINTS=1 (-DSLUICE_KILL_POINTS) have them; elsewhere KILL_POINT is nothing.
 * Armed by the environment, which a run's processes inherit:
 *   SLUICE_KILL_POINT=NAME[:NTH[:SIGNAL]]   the NTH time (default 1) that a process gets there, it
 *                                           sends itself SIGNAL (a number; default SIGKILL)
 *   SLUICE_KILL_MARK=FILE                   made by the first process that fires, with its pid and
 *                                           the name; where it exists nobody fires any more. So a
 *                                           respawned process lives, and a test sees that the point
 *                                           was reached.
 * Any process, any thread. Async-signal-safe apart from the first call.
 */
#ifndef SLUICE_SHM_KILLPOINT_H
#define SLUICE_SHM_KILLPOINT_H

/* One line a point: name, process that passes it, what has just happened (or is about to). Tests
 * walk this table: a point that no run reaches fails. */
#define KILL_POINT_TABLE(X)                                                                        \
    X(RING_CLAIM_BEFORE, "ring.claim.before", "loader", "EMPTY is seen, the claim not yet tried")  \
    X(RING_CLAIM_AFTER, "ring.claim.after", "loader", "CLAIMED, nothing written")                  \
    X(RING_COMMIT_BEFORE, "ring.commit.before", "loader", "the payload is written, still CLAIMED") \
    X(RING_COMMIT_AFTER, "ring.commit.after", "loader", "DONE, the trainer not yet woken")

typedef enum {
#define KILL_POINT_ENUM(id, name, process, what) KP_##id,
    KILL_POINT_TABLE(KILL_POINT_ENUM)
#undef KILL_POINT_ENUM
        KILL_POINT_COUNT
} kill_point_t;

#ifdef SLUICE_KILL_POINTS
void kill_point(kill_point_t point);
#define KILL_POINT(id) kill_point(KP_##id)
#else
#define KILL_POINT(id) ((void)0)
#endif

/* In every build, for tests and --help of them: NULL beyond the end. */
const char *kill_point_name(kill_point_t point);
const char *kill_point_process(kill_point_t point);

#endif
