#include "tools/ask.h"

#include "control/bus.h"
#include "control/registry.h"
#include "shm/err.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ASK_WAIT_MS = 3000 };

static int print_reply(const bus_message_t *m)
{
    size_t bytes;
    if (m->type != WIRE_REPLY)
        return err_set(ERR_FAILED, "the coordinator answered with a %s message",
                       wire_type_name(m->type));
    const char *text = wire_text(m->frame, &bytes);
    fwrite(text, 1, bytes, stdout);
    if (bytes && text[bytes - 1] != '\n')
        putchar('\n');
    return 0;
}

int ask_run(const char *which, wire_cmd_t command, uint32_t argument)
{
    char identity[BUS_IDENTITY];
    registry_entry_t run;
    bus_t *bus = NULL;
    bus_message_t m;
    wire_command_t cmd;
    int rc;
    CHECK_GOTO(registry_find(which, &run), rc, fail);
    memset(&cmd, 0, sizeof cmd);
    wire_begin(&cmd, WIRE_COMMAND, sizeof cmd);
    cmd.command = command;
    cmd.argument = argument;
    snprintf(cmd.token, sizeof cmd.token, "%s", run.token);
    snprintf(identity, sizeof identity, "command-%d", (int)getpid());
    CHECK_GOTO(bus_connect(run.endpoint, identity, &bus), rc, fail);
    CHECK_GOTO(bus_send(bus, NULL, &cmd, sizeof cmd), rc, fail);
    CHECK_GOTO(bus_receive(bus, ASK_WAIT_MS, &m), rc, fail);
    if (rc == 1)
        rc = print_reply(&m);
    else
        rc = err_set(ERR_FAILED,
                     "the coordinator of %s (pid %d) did not answer within %d s: it is stopped, or "
                     "very busy",
                     run.run_dir[0] ? run.run_dir : "the run", (int)run.pid, ASK_WAIT_MS / 1000);
fail:
    bus_close(&bus);
    /* No such run is the answer "no", not a wrong word: exit status 1. */
    return rc == ERR_CONFIG ? ERR_FAILED : rc;
}
