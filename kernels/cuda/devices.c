/* Which GPUs there are, through the runtime and NVML.
 *
 * NVML's header comes with the driver's development files, which a machine that builds or trains need
 * not have; its few functions are found by name, and the two structs of its stable interface are
 * declared here (NVIDIA's NVML API reference: nvmlMemory_t, nvmlProcessInfo_t of _v2 and _v3). */
#include "kernels/devices.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NVML_PROCESSES = 64 };
#define NVML_UNKNOWN (~0ull) /* of a process's memory: a driver that does not say */

typedef struct nvml_device *nvml_device_t;
typedef struct {
    unsigned long long total, free, used;
} nvml_memory_t;
typedef struct {
    unsigned int pid;
    unsigned long long bytes;
    unsigned int gpu_instance, compute_instance;
} nvml_process_t;

typedef int nvml_processes_fn(nvml_device_t, unsigned int *, nvml_process_t *);
typedef struct {
    void *library;
    int (*shutdown)(void);
    int (*by_bus)(const char *, nvml_device_t *);
    int (*memory)(nvml_device_t, nvml_memory_t *);
    nvml_processes_fn *compute, *graphics; /* NULL: a driver without them */
    int (*name)(unsigned int, char *, unsigned int);
} nvml_t;

/* ISO C has no conversion from an object's address to a function's; POSIX has. */
static int find(void *library, const char *name, void *function)
{
    void *at = dlsym(library, name);
    memcpy(function, &at, sizeof at);
    return at != NULL;
}

static void nvml_close(nvml_t *n)
{
    if (n->shutdown)
        n->shutdown();
    if (n->library)
        dlclose(n->library);
    memset(n, 0, sizeof *n);
}

/* 1 when NVML can be asked. */
static int nvml_open(nvml_t *n)
{
    int (*init)(void) = NULL;
    memset(n, 0, sizeof *n);
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->library)
        return 0;
    if (!find(n->library, "nvmlInit_v2", &init) || init() != 0) {
        nvml_close(n);
        return 0;
    }
    if (!find(n->library, "nvmlShutdown", &n->shutdown) ||
        !find(n->library, "nvmlDeviceGetHandleByPciBusId_v2", &n->by_bus) ||
        !find(n->library, "nvmlDeviceGetMemoryInfo", &n->memory)) {
        nvml_close(n);
        return 0;
    }
    find(n->library, "nvmlDeviceGetComputeRunningProcesses_v3", &n->compute);
    find(n->library, "nvmlDeviceGetGraphicsRunningProcesses_v3", &n->graphics);
    find(n->library, "nvmlSystemGetProcessName", &n->name);
    return 1;
}

/* ---- who holds memory ---- */

/* The program's own name, without its path and its words. */
static void process_name(const nvml_t *n, unsigned int pid, char *text, size_t bytes)
{
    char line[1024] = "";
    text[0] = '\0';
    if (!n->name || n->name(pid, line, sizeof line) != 0)
        return;
    line[sizeof line - 1] = '\0';
    line[strcspn(line, " ")] = '\0';
    const char *slash = strrchr(line, '/');
    snprintf(text, bytes, "%s", slash ? slash + 1 : line);
}

static int add_holders(const nvml_t *n, nvml_device_t device, nvml_processes_fn *list,
                       k_holder_t *holders, int count)
{
    nvml_process_t processes[NVML_PROCESSES];
    unsigned int found = NVML_PROCESSES;
    /* More than there is room for is an error that fills nothing in: then nobody is named. */
    if (!list || list(device, &found, processes) != 0)
        return count;
    for (unsigned int i = 0; i < found && i < NVML_PROCESSES && count < K_HOLDERS; i++) {
        int known = 0;
        for (int k = 0; k < count; k++)
            known |= holders[k].pid == processes[i].pid;
        if (known)
            continue;
        k_holder_t *h = &holders[count++];
        h->pid = processes[i].pid;
        h->bytes = processes[i].bytes == NVML_UNKNOWN ? 0 : processes[i].bytes;
        process_name(n, h->pid, h->name, sizeof h->name);
    }
    return count;
}

static int fill_holders(const nvml_t *n, nvml_device_t device, k_holder_t *holders)
{
    int count = add_holders(n, device, n->compute, holders, 0);
    return add_holders(n, device, n->graphics, holders, count);
}

int k_cuda_holders(int ordinal, k_holder_t *holders)
{
    char bus[32];
    nvml_t nvml;
    nvml_device_t device;
    int count = 0;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, ordinal) != cudaSuccess || !nvml_open(&nvml))
        return 0;
    if (nvml.by_bus(bus, &device) == 0)
        count = fill_holders(&nvml, device, holders);
    nvml_close(&nvml);
    return count;
}

/* ---- the list ---- */

static void version_text(int version, char *text, size_t bytes)
{
    snprintf(text, bytes, "%d.%d", version / 1000, version % 1000 / 10);
}

/* Why the runtime sees no device. */
static void explain(cudaError_t e, char *why, size_t bytes)
{
    int driver = 0, runtime = 0;
    char has[16], needs[16];
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    version_text(driver, has, sizeof has);
    version_text(runtime, needs, sizeof needs);
    if (driver == 0)
        snprintf(why, bytes, "no NVIDIA driver is installed (libcuda.so.1)");
    else if (e == cudaErrorInsufficientDriver)
        snprintf(why, bytes,
                 "the NVIDIA driver is made for CUDA %s and this build needs %s: install a newer "
                 "driver",
                 has, needs);
    else if ((e == cudaErrorNoDevice || e == cudaSuccess) && visible && !visible[0])
        snprintf(why, bytes, "CUDA_VISIBLE_DEVICES is empty, which hides every GPU");
    else if ((e == cudaErrorNoDevice || e == cudaSuccess) && visible)
        snprintf(why, bytes, "CUDA_VISIBLE_DEVICES=%.100s names no GPU of this machine", visible);
    else if (e == cudaErrorNoDevice || e == cudaSuccess)
        snprintf(why, bytes, "the NVIDIA driver (CUDA %s) sees no GPU", has);
    else
        snprintf(why, bytes, "the NVIDIA driver (CUDA %s, this build %s) answers: %s", has, needs,
                 cudaGetErrorString(e));
}

/* What is free by the runtime, which needs a context; it is ended again. */
static int memory_by_runtime(k_device_t *d)
{
    size_t left = 0, total = 0;
    cudaError_t e = cudaSetDevice(d->ordinal);
    if (e == cudaSuccess)
        e = cudaMemGetInfo(&left, &total);
    cudaDeviceReset();
    d->free = left;
    d->total = total;
    return e == cudaSuccess ? 0 : -1;
}

/* NVML's numbers of the device at that bus, if it is the same one: a part of it (MIG) has less memory
 * than what lies at its bus. */
static int memory_by_nvml(const nvml_t *n, k_device_t *d, uint64_t size)
{
    nvml_device_t device;
    nvml_memory_t m;
    if (!n->library || n->by_bus(d->bus, &device) != 0 || n->memory(device, &m) != 0)
        return -1;
    if (m.total < size || m.total - size > m.total / 8)
        return -1;
    d->total = m.total;
    d->free = m.free < m.total ? m.free : m.total;
    d->n_holders = fill_holders(n, device, d->holders);
    return 0;
}

static int describe(const nvml_t *n, int ordinal, k_device_t *d)
{
    struct cudaDeviceProp p;
    memset(d, 0, sizeof *d);
    d->ordinal = ordinal;
    if (cudaGetDeviceProperties(&p, ordinal) != cudaSuccess ||
        cudaDeviceGetPCIBusId(d->bus, sizeof d->bus, ordinal) != cudaSuccess)
        return -1;
    snprintf(d->name, sizeof d->name, "%.95s", p.name);
    d->capability = 10 * p.major + p.minor;
    return memory_by_nvml(n, d, p.totalGlobalMem) == 0 ? 0 : memory_by_runtime(d);
}

int k_cuda_devices(k_device_t *list, int room, char *why, size_t why_bytes)
{
    int count = 0, n = 0;
    nvml_t nvml;
    cudaError_t e = cudaGetDeviceCount(&count);
    why[0] = '\0';
    if (e != cudaSuccess || count == 0) {
        explain(e, why, why_bytes);
        return 0;
    }
    nvml_open(&nvml);
    /* All or none: ordinals are counted, and one that fails must not pass by in silence. */
    for (; n < count && n < room; n++)
        if (describe(&nvml, n, &list[n]) < 0) {
            snprintf(why, why_bytes, "GPU %d does not work: %s", n,
                     cudaGetErrorString(cudaGetLastError()));
            n = 0;
            break;
        }
    nvml_close(&nvml);
    return n;
}
