#include "tools/ask.h"

#include "shm/err.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

int ask_find(const char *which, registry_entry_t *run)
{
    int rc = registry_find(which, run);
    return rc == ERR_CONFIG ? ERR_FAILED : rc;
}

int ask_connect(const registry_entry_t *run, bus_t **bus)
{
    static int n;
    char identity[BUS_IDENTITY];
    snprintf(identity, sizeof identity, "command-%d.%d", (int)getpid(), n++);
    return bus_connect(run->endpoint, identity, bus);
}

int ask_send(bus_t *bus, const registry_entry_t *run, wire_cmd_t command, uint32_t argument)
{
    wire_command_t cmd;
    memset(&cmd, 0, sizeof cmd);
    wire_begin(&cmd, WIRE_COMMAND, sizeof cmd);
    cmd.command = command;
    cmd.argument = argument;
    snprintf(cmd.token, sizeof cmd.token, "%s", run->token);
    return bus_send(bus, NULL, &cmd, sizeof cmd);
}

int ask_unanswered(const registry_entry_t *run)
{
    return err_set(ERR_FAILED,
                   "the coordinator of %s (pid %d) did not answer within %d s: it is stopped, or "
                   "very busy",
                   run->run_dir[0] ? run->run_dir : "the run", (int)run->pid, ASK_WAIT_MS / 1000);
}

int ask_entry(const registry_entry_t *run, wire_cmd_t command, uint32_t argument)
{
    bus_t *bus = NULL;
    bus_message_t m;
    int rc;
    CHECK_GOTO(ask_connect(run, &bus), rc, fail);
    CHECK_GOTO(ask_send(bus, run, command, argument), rc, fail);
    CHECK_GOTO(bus_receive(bus, ASK_WAIT_MS, &m), rc, fail);
    rc = rc == 1 ? print_reply(&m) : ask_unanswered(run);
fail:
    bus_close(&bus);
    return rc;
}

int ask_run(const char *which, wire_cmd_t command, uint32_t argument)
{
    registry_entry_t run;
    int rc = ask_find(which, &run);
    return rc < 0 ? rc : ask_entry(&run, command, argument);
}
