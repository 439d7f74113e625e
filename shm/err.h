/* Error codes and the thread's error text, for every module above kernels/.
 *
 * A function that can fail returns 0 or one of the negative codes below. The origin calls err_set
 * with what went wrong, where and what to do; each level that knows more calls err_add, which puts
 * its context in front. Only main prints the text and turns the code into the exit status. Thread:
 * the text is thread-local; any thread may call.
 */
#ifndef SLUICE_SHM_ERR_H
#define SLUICE_SHM_ERR_H

/* The codes are the documented exit statuses, negated (design 10). */
enum {
    ERR_FAILED = -1,  /* the run failed */
    ERR_CONFIG = -2,  /* usage or configuration */
    ERR_DATA = -3,    /* the data set cannot be used */
    ERR_ENV = -4,     /* the environment cannot be used: memory, permissions, devices */
    ERR_STOPPED = -5, /* stopped by the user after a checkpoint */
    ERR_TIMEOUT = -6, /* a deadline passed; exit status 1 */
    ERR_GONE = -7,    /* the peer or parent is gone, or the run is being torn down; exit status 1 */
};

/* Starts a new message; returns code so that `return err_set(...)` reads well. */
int err_set(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Like err_set, with ": " and strerror(errno) behind the message. */
int err_sys(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Puts "context: " in front of the present message; returns code. */
int err_add(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The message; never NULL. Valid until the thread's next err_ call. */
const char *err_text(void);
/* The exit status for a code: 0 for 0, 1 to 5 for the documented ones, 1 for the rest. */
int err_exit_status(int code);

/* Evaluate expr; on failure keep its code in rc and go to the function's one clean-up label. */
#define CHECK_GOTO(expr, rc, label)                                                                \
    do {                                                                                           \
        (rc) = (expr);                                                                             \
        if ((rc) < 0)                                                                              \
            goto label;                                                                            \
    } while (0)

#endif
