#include "tools/ask.h"

#include "shm/err.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int print_reply(void *unused, const bus_message_t *m)
{
    size_t bytes;
    (void)unused;
    const char *text = wire_text(m->frame, &bytes);
    wire_reply_t reply;
    memcpy(&reply, m->frame, sizeof reply);
    if (reply.status < 0)
        return err_set(reply.status, "%.*s", (int)bytes, text);
    fwrite(text, 1, bytes, stdout);
    if (bytes && text[bytes - 1] != '\n')
        putchar('\n');
    return 0;
}

/* Once a command, before the first socket: libzmq would end the process without a word of ours. */
static int try_sockets(const registry_entry_t *run)
{
    static int tried;
    char place[sizeof run->endpoint + 16];
    if (tried)
        return 0;
    tried = 1;
    snprintf(place, sizeof place, "%s-%d", run->endpoint, (int)getpid());
    return bus_trial(place);
}

int ask_find(const char *which, registry_entry_t *run)
{
    int rc = registry_find(which, run);
    if (rc == 0)
        rc = try_sockets(run);
    return rc == ERR_CONFIG ? ERR_FAILED : rc;
}

int ask_connect(const registry_entry_t *run, bus_t **bus)
{
    static int n;
    char identity[BUS_IDENTITY];
    int rc = try_sockets(run);
    if (rc < 0)
        return rc;
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

/* A coordinator that somebody has stopped (Ctrl-Z, SIGSTOP). */
static int is_stopped(pid_t pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    const char *end = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    if (f)
        fclose(f);
    return end && end[1] == ' ' && (end[2] == 'T' || end[2] == 't');
}

int ask_unanswered(const registry_entry_t *run)
{
    if (is_stopped(run->pid))
        return err_set(ERR_FAILED,
                       "the coordinator of %s (pid %d) is stopped: kill -CONT %d, or fg",
                       run->run_dir[0] ? run->run_dir : "the run", (int)run->pid, (int)run->pid);
    return err_set(ERR_FAILED,
                   "the coordinator of %s (pid %d) did not answer within %d s: it is very busy",
                   run->run_dir[0] ? run->run_dir : "the run", (int)run->pid, ASK_WAIT_MS / 1000);
}

static int ask(const registry_entry_t *run, wire_cmd_t command, uint32_t argument,
               int (*take)(void *user, const bus_message_t *m), void *user)
{
    bus_t *bus = NULL;
    bus_message_t m;
    int rc;
    CHECK_GOTO(ask_connect(run, &bus), rc, fail);
    CHECK_GOTO(ask_send(bus, run, command, argument), rc, fail);
    CHECK_GOTO(bus_receive(bus, ASK_WAIT_MS, &m), rc, fail);
    if (rc == 0)
        rc = ask_unanswered(run);
    else if (m.type != WIRE_REPLY)
        rc = err_set(ERR_FAILED, "the coordinator answered with a %s message",
                     wire_type_name(m.type));
    else
        rc = take(user, &m);
fail:
    bus_close(&bus);
    return rc;
}

int ask_entry(const registry_entry_t *run, wire_cmd_t command, uint32_t argument)
{
    return ask(run, command, argument, print_reply, NULL);
}

typedef struct {
    char *text;
    size_t bytes;
} keep_t;

static int keep_reply(void *user, const bus_message_t *m)
{
    keep_t *k = user;
    snprintf(k->text, k->bytes, "%s", wire_text(m->frame, NULL));
    return 0;
}

int ask_text(const registry_entry_t *run, wire_cmd_t command, uint32_t argument, char *text,
             size_t bytes)
{
    keep_t k = {text, bytes};
    return ask(run, command, argument, keep_reply, &k);
}

int ask_run(const char *which, wire_cmd_t command, uint32_t argument)
{
    registry_entry_t run;
    int rc = ask_find(which, &run);
    return rc < 0 ? rc : ask_entry(&run, command, argument);
}
