/* All bytes to a descriptor, however few a single write takes. Any thread. */
#ifndef SLUICE_TOOLS_WRITEALL_H
#define SLUICE_TOOLS_WRITEALL_H

#include <stdint.h>

/* 0, or -1 with errno; what is written of it by then stays. The descriptor is one that blocks. */
int writeall(int fd, const void *data, uint64_t bytes);

#endif
