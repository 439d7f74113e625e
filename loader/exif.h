/* The orientation tag of an EXIF block; nothing else in it is of interest.
 *
 * A strict reader of untrusted bytes: every offset is checked, only IFD0 is looked at. Any thread.
 */
#ifndef SLUICE_LOADER_EXIF_H
#define SLUICE_LOADER_EXIF_H

#include <stddef.h>
#include <stdint.h>

/* The orientation 1..8 in a JPEG APP1 payload ("Exif\0\0" and a TIFF block); 0 if this is no EXIF
 * block or it has no such tag; -1 with *why (static text) when the block is malformed. */
int exif_app1(const uint8_t *data, size_t bytes, const char **why);
/* The same of a bare TIFF block (PNG's eXIf chunk). */
int exif_tiff(const uint8_t *data, size_t bytes, const char **why);

#endif
