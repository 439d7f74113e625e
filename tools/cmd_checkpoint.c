/* sluice checkpoint [RUN]: a checkpoint now, in the middle of an epoch; waits until it is on disk. */
#include "tools/commands.h"

#include "shm/err.h"
#include "tools/ask.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* The coordinator answers within 60 s, whatever has become of the checkpoint. */
enum { CHECKPOINT_WAIT_S = 75, CHECKPOINT_LOOK_MS = 1000 };

static int await_reply(bus_t *bus, const registry_entry_t *run)
{
    bus_message_t m;
    for (int s = 0; s < CHECKPOINT_WAIT_S; s++) {
        int rc = bus_receive(bus, CHECKPOINT_LOOK_MS, &m);
        if (rc < 0)
            return rc;
        if (rc == 1 && m.type == WIRE_REPLY) {
            wire_reply_t reply;
            size_t bytes;
            const char *text = wire_text(m.frame, &bytes);
            memcpy(&reply, m.frame, sizeof reply);
            bytes -= bytes > 0 && text[bytes - 1] == '\n';
            if (reply.status < 0)
                return err_set(reply.status, "%.*s", (int)bytes, text);
            printf("%.*s\n", (int)bytes, text);
            return 0;
        }
        if (kill(run->pid, 0) != 0 && errno == ESRCH)
            return err_set(ERR_FAILED, "the run %s ended before it wrote that checkpoint",
                           run->run_dir);
    }
    return ask_unanswered(run);
}

int cmd_checkpoint(int argc, char **argv)
{
    registry_entry_t run;
    bus_t *bus = NULL;
    int rc;
    if (argc > 2)
        return err_set(ERR_CONFIG, "%s takes one run: '%s' is too much", argv[0], argv[2]);
    if (argc == 2 && argv[1][0] == '-')
        return err_set(ERR_CONFIG, "%s does not know '%s'", argv[0], argv[1]);
    CHECK_GOTO(ask_find(argc == 2 ? argv[1] : NULL, &run), rc, fail);
    CHECK_GOTO(ask_connect(&run, &bus), rc, fail);
    CHECK_GOTO(ask_send(bus, &run, WIRE_CMD_CHECKPOINT, 0), rc, fail);
    rc = await_reply(bus, &run);
fail:
    bus_close(&bus);
    return rc;
}
