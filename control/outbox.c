#include "control/outbox.h"

#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

typedef struct item {
    struct item *next;
    size_t bytes;
    unsigned char frame[];
} item_t;

struct outbox {
    item_t *first, *last;
    size_t soft, hard, held; /* bytes */
    size_t waiting;
    uint64_t dropped;
};

int outbox_new(size_t soft, size_t hard, outbox_t **box)
{
    *box = calloc(1, sizeof **box);
    if (!*box)
        return err_set(ERR_ENV, "no memory for an outbox");
    (*box)->soft = soft;
    (*box)->hard = hard;
    return 0;
}

static void outbox_pop(outbox_t *box)
{
    item_t *item = box->first;
    box->first = item->next;
    if (!box->first)
        box->last = NULL;
    box->held -= item->bytes;
    box->waiting--;
    free(item);
}

void outbox_free(outbox_t **box)
{
    if (!*box)
        return;
    while ((*box)->first)
        outbox_pop(*box);
    free(*box);
    *box = NULL;
}

int outbox_push(outbox_t *box, const void *frame, size_t bytes, int droppable)
{
    item_t *item = NULL;
    if (box->held + bytes <= (droppable ? box->soft : box->hard))
        item = malloc(sizeof *item + bytes);
    if (!item) {
        box->dropped++;
        return err_set(ERR_TIMEOUT, "%zu messages of %zu bytes wait already", box->waiting,
                       box->held);
    }
    item->next = NULL;
    item->bytes = bytes;
    memcpy(item->frame, frame, bytes);
    if (box->last)
        box->last->next = item;
    else
        box->first = item;
    box->last = item;
    box->held += bytes;
    box->waiting++;
    return 0;
}

int outbox_flush(outbox_t *box, bus_t *bus, const char *to)
{
    while (box->first) {
        int rc = bus_send(bus, to, box->first->frame, box->first->bytes);
        if (rc == ERR_TIMEOUT)
            return 0;
        if (rc < 0)
            return rc;
        outbox_pop(box);
    }
    return 0;
}

size_t outbox_waiting(const outbox_t *box)
{
    return box->waiting;
}

size_t outbox_bytes(const outbox_t *box)
{
    return box->held;
}

uint64_t outbox_dropped(const outbox_t *box)
{
    return box->dropped;
}
