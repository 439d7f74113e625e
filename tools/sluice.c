/* The sluice command: picks the sub-command, prints its error, turns its code into the exit status.
 */
#include "tools/commands.h"

#include "control/machine.h"
#include "control/text.h"
#include "shm/err.h"
#include "tools/early.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static int wants_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return 1;
    return 0;
}

/* `sluice`, `--help` and `--version` are the sub-commands of the same names. */
static const char *command_word(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return "help";
    return strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
}

static void print_error(void)
{
    char text[4096];
    snprintf(text, sizeof text, "%s", err_text());
    text_printable(text);
    fprintf(stderr, "sluice: %s\n", text);
}

int main(int argc, char **argv)
{
    early_streams();
    /* A reader that goes away (`sluice digest | head`) is a failed write, not a silent death. */
    signal(SIGPIPE, SIG_IGN);
    /* So is a file beyond the user's limit on file sizes (ulimit -f). */
    signal(SIGXFSZ, SIG_IGN);

    const char *word = command_word(argc, argv);
    const command_t *command = command_find(word);
    int rc = machine_stack();
    if (rc < 0) {
        print_error();
        return err_exit_status(rc);
    }
    if (command && (command->run == cmd_train || command->run == cmd_digest ||
                    command->run == cmd_val || command->run == cmd_predict))
        early_begin();
    if (!command) {
        rc = err_set(ERR_CONFIG, "'%s' is not a command; `sluice help` lists them", word);
    } else if (argc > 2 && wants_help(argc - 1, argv + 1)) {
        char help[] = "help", *words[] = {help, (char *)command->name, NULL};
        rc = cmd_help(2, words);
    } else {
        rc = command->run(argc > 1 ? argc - 1 : argc, argc > 1 ? argv + 1 : argv);
    }
    /* A full disk behind a redirected stdout is a failure too. */
    if (fflush(stdout) != 0 && rc == 0)
        rc = err_sys(ERR_ENV, "writing to standard output");
    if (rc < 0)
        print_error();
    return err_exit_status(rc);
}
