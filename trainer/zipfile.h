/* A ZIP archive in memory, read the one way that torch.save writes it: members stored, not deflated.
 *
 * Names are only compared, never used as paths; nothing is extracted. The central directory decides,
 * and every local header must say the same. Members may neither overlap one another nor the
 * directory, and a stored member is never longer than its bytes in the file: an archive cannot
 * unfold into more than it is. ZIP64 is read. A deflated, encrypted or split member is listed, and
 * refused with a sentence only when it is asked for. Any thread; the archive points into the
 * caller's bytes.
 */
#ifndef SLUICE_TRAINER_ZIPFILE_H
#define SLUICE_TRAINER_ZIPFILE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *name; /* not terminated, any bytes */
    size_t name_bytes;
    uint16_t method, flags; /* as in the archive; 0 and no encryption is what can be read */
    uint32_t crc;
    uint64_t bytes; /* uncompressed */
    uint64_t packed;
    uint64_t header, data; /* offsets of the local header and of what follows it */
} zipfile_member_t;

typedef struct zipfile zipfile_t;

/* 1 if the bytes begin as an archive does. */
int zipfile_is(const void *bytes, uint64_t total);
/* origin is named in sentences. ERR_CONFIG for what is no whole archive. */
int zipfile_open(const void *bytes, uint64_t total, const char *origin, zipfile_t **zip);
void zipfile_free(zipfile_t **zip);
uint32_t zipfile_count(const zipfile_t *zip);
const zipfile_member_t *zipfile_at(const zipfile_t *zip, uint32_t i); /* in order of name */
/* NULL if there is none of this name. */
const zipfile_member_t *zipfile_find(const zipfile_t *zip, const char *name, size_t name_bytes);
/* The member's bytes (m->bytes of them), after its checksum; ERR_CONFIG when it cannot be read. A
 * checksum of 0 in the archive means that its writer left it out (torch's set_crc32_options). */
int zipfile_read(const zipfile_t *zip, const zipfile_member_t *m, const void **data);

/* CRC-32 as ZIP has it (polynomial 0xEDB88320), going on from crc; 0 to begin. */
uint32_t zipfile_crc32(uint32_t crc, const void *data, uint64_t bytes);

#endif
