/* A CPU that claims to work while the host goes on (k_ops_t.async), for tests of the host's side of
 * steps that run ahead. Test programs only; one device at a time.
 *
 * What it is given is done at once; an event says "not yet" a few times before it has fired, so the
 * host must not depend on an answer. A recorded step is played by the test: fake_async.play is called
 * where a GPU would run the recording, and what was enqueued while recording is undone.
 */
#ifndef SLUICE_TESTS_FAKE_ASYNC_H
#define SLUICE_TESTS_FAKE_ASYNC_H

#include "kernels/kernels.h"

typedef struct {
    int late; /* times that an event says "not yet"; below 0: for ever */
    int (*play)(void *user, int32_t slot);
    void *user;
    int recorded[K_GRAPHS], replayed[K_GRAPHS];
    int pinned;                      /* pins without an unpin */
    int measuring, measured, chosen; /* measure(1) is on; has been; choose was called */
    int32_t measured_n;              /* images of the last batch that was */
} fake_async_t;
extern fake_async_t fake_async;
const k_ops_t *fake_async_ops(void);

#endif
