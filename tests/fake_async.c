#include "tests/fake_async.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fake_async_t fake_async;

static k_ops_t table;
static int left[K_EVENTS], known[K_EVENTS];
static uint64_t arena_bytes;
static char *before; /* the arena when a recording began */
static int32_t recording = -1;

static int fake_open(const k_open_t *args, k_dev_t **dev, char *why, size_t why_bytes)
{
    int rc = k_cpu_ops()->open(args, dev, why, why_bytes);
    if (rc == 0)
        (*dev)->ops = &table;
    return rc;
}

static int fake_reserve(k_dev_t *dev, uint64_t bytes)
{
    arena_bytes = bytes;
    return k_cpu_ops()->reserve(dev, bytes);
}

static int fake_memory(k_dev_t *dev, uint64_t *free_bytes, uint64_t *total_bytes)
{
    (void)dev;
    *free_bytes = *total_bytes = (uint64_t)8 << 30;
    return 0;
}

static int fake_record(k_dev_t *dev, int32_t e, k_stream_t s)
{
    int rc = k_cpu_ops()->record(dev, e, s);
    if (rc == 0) {
        left[e] = fake_async.late;
        known[e] = 1;
    }
    return rc;
}

static int fake_event(k_dev_t *dev, int32_t e, int timeout_ms)
{
    int rc = k_cpu_ops()->event(dev, e, timeout_ms);
    if (rc < 0 || !known[e] || left[e] == 0)
        return rc;
    left[e]--;
    return 1;
}

static float fake_elapsed(k_dev_t *dev, int32_t from, int32_t to)
{
    (void)dev;
    return known[from] && known[to] ? 0.5f : -1.0f;
}

static int fake_pin(k_dev_t *dev, void *host, uint64_t bytes)
{
    fake_async.pinned++;
    return k_cpu_ops()->pin(dev, host, bytes);
}

static int fake_unpin(k_dev_t *dev, void *host)
{
    fake_async.pinned--;
    return k_cpu_ops()->unpin(dev, host);
}

static int fake_capture(k_dev_t *dev, int32_t slot)
{
    before = malloc(arena_bytes);
    if (!before || recording >= 0)
        return -1;
    recording = slot;
    return k_cpu_ops()->download(dev, K_STREAM_MAIN, before, 0, arena_bytes);
}

static int fake_captured(k_dev_t *dev)
{
    if (recording < 0)
        return -1;
    int rc = k_cpu_ops()->upload(dev, K_STREAM_MAIN, 0, before, arena_bytes);
    free(before);
    before = NULL;
    fake_async.recorded[recording]++;
    recording = -1;
    return rc;
}

static int fake_replay(k_dev_t *dev, int32_t slot)
{
    (void)dev;
    fake_async.replayed[slot]++;
    return fake_async.recorded[slot] ? fake_async.play(fake_async.user, slot) : -1;
}

static int fake_measure(k_dev_t *dev, int on)
{
    (void)dev;
    fake_async.measuring = on;
    fake_async.measured += on;
    return 0;
}

static int fake_image(k_dev_t *dev, k_at u8, const k_tensor_t *y)
{
    if (fake_async.measuring)
        fake_async.measured_n = y->n;
    return k_cpu_ops()->image(dev, u8, y);
}

static int64_t fake_choices(k_dev_t *dev, char *text, uint64_t bytes)
{
    (void)dev;
    return snprintf(text, text ? bytes : 0, "fake 1 gpu \"A/B\"\n%s",
                    fake_async.measured || fake_async.chosen ? "conv 1 -> 3\n" : "");
}

static int fake_choose(k_dev_t *dev, const char *text)
{
    (void)dev;
    fake_async.chosen += strstr(text, "conv 1 -> 3") != NULL;
    return 0;
}

const k_ops_t *fake_async_ops(void)
{
    table = *k_cpu_ops();
    table.name = "fake";
    table.async = 1;
    table.open = fake_open;
    table.reserve = fake_reserve;
    table.memory = fake_memory;
    table.record = fake_record;
    table.event = fake_event;
    table.elapsed = fake_elapsed;
    table.pin = fake_pin;
    table.unpin = fake_unpin;
    table.capture = fake_capture;
    table.captured = fake_captured;
    table.replay = fake_replay;
    table.measure = fake_measure;
    table.image = fake_image;
    table.choices = fake_choices;
    table.choose = fake_choose;
    memset(left, 0, sizeof left);
    memset(known, 0, sizeof known);
    fake_async = (fake_async_t){.late = 3};
    recording = -1;
    return &table;
}
