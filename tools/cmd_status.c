/* sluice status [RUN] [--json]: asks a live run's coordinator. */
#include "tools/commands.h"

#include "control/bus.h"
#include "control/registry.h"
#include "shm/err.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STATUS_WAIT_MS = 3000 };

static int ask(const registry_entry_t *run, uint32_t what, uint32_t argument)
{
    char identity[BUS_IDENTITY];
    bus_t *bus = NULL;
    bus_message_t m;
    wire_command_t cmd;
    int rc;
    memset(&cmd, 0, sizeof cmd);
    wire_begin(&cmd, WIRE_COMMAND, sizeof cmd);
    cmd.command = what;
    cmd.argument = argument;
    snprintf(cmd.token, sizeof cmd.token, "%s", run->token);
    snprintf(identity, sizeof identity, "command-%d", (int)getpid());
    CHECK_GOTO(bus_connect(run->endpoint, identity, &bus), rc, fail);
    CHECK_GOTO(bus_send(bus, NULL, &cmd, sizeof cmd), rc, fail);
    CHECK_GOTO(bus_receive(bus, STATUS_WAIT_MS, &m), rc, fail);
    if (rc == 0) {
        rc = err_set(ERR_FAILED,
                     "the coordinator of %s (pid %d) did not answer within %d s: it is stopped, or very "
                     "busy",
                     run->run_dir[0] ? run->run_dir : "the run", (int)run->pid, STATUS_WAIT_MS / 1000);
    } else if (m.type != WIRE_REPLY) {
        rc = err_set(ERR_FAILED, "the coordinator answered with a %s message", wire_type_name(m.type));
    } else {
        size_t bytes;
        const char *text = wire_text(m.frame, &bytes);
        printf("%.*s", (int)bytes, text);
        if (bytes && text[bytes - 1] != '\n')
            putchar('\n');
        rc = 0;
    }
fail:
    bus_close(&bus);
    return rc;
}

int cmd_status(int argc, char **argv)
{
    const char *which = NULL;
    registry_entry_t run;
    int text = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            text = 0;
        else if (argv[i][0] == '-')
            return err_set(ERR_CONFIG, "status knows --json, not '%s'", argv[i]);
        else if (which)
            return err_set(ERR_CONFIG, "status looks at one run: '%s' is too much", argv[i]);
        else
            which = argv[i];
    }
    int rc = registry_find(which, &run);
    /* No such run is the answer "no", not a wrong word: exit status 1. */
    if (rc == ERR_CONFIG)
        rc = ERR_FAILED;
    return rc < 0 ? rc : ask(&run, WIRE_CMD_STATUS, (uint32_t)text);
}
