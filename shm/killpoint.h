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

/* One line a point: name, who passes it, what has just happened (or is about to). Tests walk this
 * table: a point that no run reaches fails. Who:
 *   loader       in any run                  leaving      a loader that is asked to, with cells
 *   bad          a loader with a bad file    trainer      (ring.slot.*: the coordinator too, as it
 *   coordinator  in the start                             arms the rings)
 *   fence        the coordinator, when a loader has died
 *   checkpoint   rank 0's trainer, then the scribe (tests/test_resume.sh)
 *   rewind       nobody yet: until trainers are restarted, tests/test_ring_rewind alone */
#define KILL_POINT_TABLE(X)                                                                        \
    X(RING_CLAIM_BEFORE, "ring.claim.before", "loader", "EMPTY is seen, the claim not yet tried")  \
    X(RING_CLAIM_AFTER, "ring.claim.after", "loader", "CLAIMED, nothing written")                  \
    X(RING_COMMIT_BEFORE, "ring.commit.before", "loader", "the payload is written, still CLAIMED") \
    X(RING_COMMIT_AFTER, "ring.commit.after", "loader", "DONE, the ready word as it was")          \
    X(RING_COMMIT_TOLD, "ring.commit.told", "loader", "the ready word is changed, nobody woken")   \
    X(RING_ABANDON_BEFORE, "ring.abandon.before", "leaving", "CLAIMED, to be given back")          \
    X(RING_ABANDON_AFTER, "ring.abandon.after", "leaving", "EMPTY again, the others not woken")    \
    X(JOB_READ_BEGUN, "job.read.begun", "loader", "a claimed cell's files are asked for")          \
    X(JOB_READ_DONE, "job.read.done", "loader", "a cell's files are in memory")                    \
    X(JOB_DECODE_BEFORE, "job.decode.before", "loader", "the cell's place is known, not decoded")  \
    X(JOB_AUGMENT, "job.augment", "loader", "a cell's files are decoded, its bytes follow")        \
    X(JOB_BAD_BEFORE, "job.bad.before", "bad", "a file is unusable, nobody knows it yet")          \
    X(JOB_BAD_AFTER, "job.bad.after", "bad", "the report is sent, the cell is blocked")            \
    X(JOB_LEDGER, "job.ledger", "bad", "an entry came, no cell is planned anew yet")               \
    X(LOOP_WAIT, "loop.wait", "loader", "no cell is ours, about to sleep on the bell")             \
    X(RING_SLOT_WORD, "ring.slot.word", "trainer", "a word of the next lap is stored")             \
    X(RING_SLOT_WORDS, "ring.slot.words", "trainer", "all its words are, its fields are not")      \
    X(RING_RELEASE_BEFORE, "ring.release.before", "trainer", "a batch is copied, all as it was")   \
    X(RING_RELEASE_OPENED, "ring.release.opened", "trainer", "the slot is new, tail is old")       \
    X(RING_RELEASE_MOVED, "ring.release.moved", "trainer", "tail is new, the bell not rung")       \
    X(RING_RELEASE_AFTER, "ring.release.after", "trainer", "the bell is rung")                     \
    X(RING_ARM_BEFORE, "ring.arm.before", "coordinator", "rings are mapped, nothing is open")      \
    X(RING_WINDOW_SET, "ring.window.set", "coordinator", "all slots and tail, still closed")       \
    X(RING_WINDOW_OPEN, "ring.window.open", "coordinator", "open, the bell not rung")              \
    X(RING_ARM_AFTER, "ring.arm.after", "coordinator", "armed")                                    \
    X(FENCE_BEFORE, "fence.before", "fence", "a loader is seen dead, its words are CLAIMED")       \
    X(RING_FENCE_WORD, "fence.word", "fence", "one of its words is EMPTY, the others are not")     \
    X(FENCE_AFTER, "fence.after", "fence", "all of them are, nobody is told")                      \
    X(RING_RAISE_BEFORE, "ring.raise.before", "rewind", "before the new generation")               \
    X(RING_RAISE_AFTER, "ring.raise.after", "rewind", "raised, no loader has acknowledged")        \
    X(RING_REWIND_BEFORE, "ring.rewind.before", "rewind", "all acknowledged, no slot is reset")    \
    X(RING_REWIND_CLOSED, "ring.rewind.closed", "rewind", "the window is closed")                  \
    X(RING_REWIND_AFTER, "ring.rewind.after", "rewind", "open at another batch")                   \
    X(CHECKPOINT_AGREED, "checkpoint.agreed", "checkpoint", "agreed, nothing copied")              \
    X(CHECKPOINT_BEGUN, "checkpoint.begun", "checkpoint", "a slot says that it is not whole")      \
    X(CHECKPOINT_HALF, "checkpoint.half", "checkpoint", "weights in the slot, no state")           \
    X(CHECKPOINT_COMMITTED, "checkpoint.committed", "checkpoint", "whole, nobody told")            \
    X(CHECKPOINT_SENT, "checkpoint.sent", "checkpoint", "the scribe is told")                      \
    X(CHECKPOINT_SYNCED, "checkpoint.synced", "checkpoint", "on disk, without its name")           \
    X(CHECKPOINT_NAMED, "checkpoint.named", "checkpoint", "the file has its name")                 \
    X(CHECKPOINT_BETWEEN, "checkpoint.between", "checkpoint", "weights named, no state")

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
