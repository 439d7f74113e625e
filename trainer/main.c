/* sluice-trainer: one process per device (design 1). Started by the coordinator, never by hand. */
#include "shm/err.h"
#include "trainer/run.h"

#include <signal.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    /* A coordinator that goes away is a failed write, not a silent death. */
    signal(SIGPIPE, SIG_IGN);
    int rc = trainer_run(argc, argv);
    if (rc < 0)
        fprintf(stderr, "sluice-trainer: %s\n", err_text());
    return err_exit_status(rc);
}
