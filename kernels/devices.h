/* The GPUs that CUDA sees, and who holds their memory: for `sluice-trainer --devices` and for the
 * sentence of a trainer that finds too little memory.
 *
 * Part of kernels/cuda: weak like k_cuda_ops, so NULL in a program without it. NVML, which comes with
 * the driver, says what is free and who holds the rest without touching a device; where it is missing
 * or speaks of another device (a part of one, MIG), the runtime says what is free, which takes a context
 * on each device, and nobody is named. May hang with the driver: only a process that somebody watches
 * calls it. One thread.
 */
#ifndef SLUICE_KERNELS_DEVICES_H
#define SLUICE_KERNELS_DEVICES_H

#include <stddef.h>
#include <stdint.h>

enum { K_DEVICES = 64, K_HOLDERS = 16 };

typedef struct {
    uint32_t pid;   /* as the driver numbers processes: in a container those of the host */
    uint64_t bytes; /* 0: not known */
    char name[64];  /* "": not known */
} k_holder_t;

typedef struct {
    int ordinal; /* CUDA's, among those that CUDA_VISIBLE_DEVICES leaves */
    char name[96], bus[32];
    int capability;       /* 90: 9.0 */
    uint64_t total, free; /* bytes */
    k_holder_t holders[K_HOLDERS];
    int n_holders;
} k_device_t;

/* Fills list with up to `room` devices and returns how many; 0 with the reason in why where there is
 * none. Contexts of this process that it needed are ended. */
int k_cuda_devices(k_device_t *list, int room, char *why, size_t why_bytes) __attribute__((weak));
/* Who holds memory of that device, in holders (K_HOLDERS places); returns how many. A process that asks
 * for the others does so before it opens the device: in a container it cannot tell which of the
 * driver's numbers is its own. */
int k_cuda_holders(int ordinal, k_holder_t *holders) __attribute__((weak));

#endif
