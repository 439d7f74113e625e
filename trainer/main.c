/* sluice-trainer: one process per device (design 1). Started by the coordinator, never by hand; with
 * --devices, --plan or --bench it answers a question and ends. */
#include "shm/err.h"
#include "trainer/bench.h"
#include "trainer/devices.h"
#include "trainer/plan_batch.h"
#include "trainer/run.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    /* A coordinator that goes away is a failed write, not a silent death. */
    signal(SIGPIPE, SIG_IGN);
    const char *word = argc > 1 ? argv[1] : "";
    int rc = strcmp(word, "--devices") == 0 ? devices_main(argc, argv)
             : strcmp(word, "--plan") == 0  ? plan_batch_main(argc, argv)
             : strcmp(word, "--bench") == 0 ? bench_main(argc, argv)
                                            : trainer_run(argc, argv);
    if (rc < 0)
        fprintf(stderr, "sluice-trainer: %s\n", err_text());
    return err_exit_status(rc);
}
