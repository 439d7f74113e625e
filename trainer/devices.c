#include "trainer/devices.h"

#include "control/gpus.h"
#include "control/json.h"
#include "kernels/devices.h"
#include "shm/err.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert((int)K_DEVICES == (int)GPUS_MOST && (int)K_HOLDERS == (int)GPUS_HOLDERS,
               "what is told is what is read");

const char devices_no_cuda[] = "this build has no CUDA: build where nvcc is installed";

long devices_number(int argc, char **argv, const char *word, long otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], word) == 0) {
            char *end;
            long n = strtol(argv[i + 1], &end, 10);
            return end != argv[i + 1] && *end == '\0' ? n : otherwise;
        }
    return otherwise;
}

int devices_put(int fd, const char *text, size_t bytes)
{
    if (fd < 0)
        fd = STDOUT_FILENO;
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_sys(ERR_ENV, "writing an answer");
        text += n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int find_devices(k_device_t *list, char *why, size_t bytes)
{
    if (k_cuda_devices)
        return k_cuda_devices(list, K_DEVICES, why, bytes);
    snprintf(why, bytes, "%s", devices_no_cuda);
    return 0;
}

static void put_device(json_t *j, const k_device_t *d)
{
    json_object_begin(j);
    json_key_int(j, "ordinal", d->ordinal);
    json_key_string(j, "name", d->name);
    json_key_string(j, "bus", d->bus);
    json_key_int(j, "capability", d->capability);
    json_key_uint(j, "total", d->total);
    json_key_uint(j, "free", d->free);
    json_key(j, "processes");
    json_array_begin(j);
    for (int i = 0; i < d->n_holders; i++) {
        json_object_begin(j);
        json_key_uint(j, "pid", d->holders[i].pid);
        json_key_string(j, "name", d->holders[i].name);
        json_key_uint(j, "bytes", d->holders[i].bytes);
        json_object_end(j);
    }
    json_array_end(j);
    json_object_end(j);
}

int devices_main(int argc, char **argv)
{
    char why[512] = "";
    json_t j;
    k_device_t *list = calloc(K_DEVICES, sizeof *list);
    char *text = malloc(GPUS_ANSWER_BYTES);
    int rc;
    if (!list || !text) {
        rc = err_set(ERR_ENV, "no memory for a list of devices");
        goto done;
    }
    int n = find_devices(list, why, sizeof why);
    json_begin(&j, text, GPUS_ANSWER_BYTES - 1);
    json_object_begin(&j);
    json_key(&j, "devices");
    json_array_begin(&j);
    for (int i = 0; i < n; i++)
        put_device(&j, &list[i]);
    json_array_end(&j);
    json_key_string(&j, "why", why);
    json_object_end(&j);
    CHECK_GOTO(json_finish(&j), rc, done);
    size_t bytes = strlen(text);
    text[bytes++] = '\n';
    rc = devices_put((int)devices_number(argc, argv, "--to", -1), text, bytes);
done:
    free(list);
    free(text);
    return rc;
}

void devices_holders(int ordinal, char *text, size_t bytes)
{
    text[0] = '\0';
    k_holder_t holders[K_HOLDERS];
    memset(holders, 0, sizeof holders);
    int n = ordinal < 0 || !k_cuda_holders ? 0 : k_cuda_holders(ordinal, holders);
    size_t used = 0;
    for (int i = 0; i < n && used + 1 < bytes; i++) {
        char name[sizeof holders[i].name + 4] = "", size[48] = "";
        if (holders[i].name[0])
            snprintf(name, sizeof name, " (%s)", holders[i].name);
        if (holders[i].bytes)
            snprintf(size, sizeof size, "%llu MB of it",
                     (unsigned long long)(holders[i].bytes / 1000000));
        int put = snprintf(text + used, bytes - used, "; pid %u%s holds %s", holders[i].pid, name,
                           size[0] ? size : "some of it");
        used += put > 0 ? (size_t)put : 0;
    }
}
