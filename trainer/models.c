#include "trainer/models.h"

#include <string.h>

/* The assembler reads the tables; their paths are relative to the folder of the Makefile, from
 * which the compiler is run. */
__asm__(".pushsection .rodata\n"
        "models_yolo11_first: .incbin \"trainer/models/yolo11.yaml\"\n"
        "models_yolo11_end: .byte 0\n"
        "models_yolov8_first: .incbin \"trainer/models/yolov8.yaml\"\n"
        "models_yolov8_end: .byte 0\n"
        ".popsection\n");

extern const char models_yolo11_first[], models_yolo11_end[];
extern const char models_yolov8_first[], models_yolov8_end[];

static const struct {
    const char *name, *first, *end;
} tables[] = {
    {"yolo11", models_yolo11_first, models_yolo11_end},
    {"yolov8", models_yolov8_first, models_yolov8_end},
};

enum { TABLES = sizeof tables / sizeof *tables };

const char *models_text(const char *name, size_t *bytes)
{
    for (int i = 0; i < TABLES; i++) {
        if (strcmp(tables[i].name, name) == 0) {
            *bytes = (size_t)(tables[i].end - tables[i].first);
            return tables[i].first;
        }
    }
    return NULL;
}

const char *models_name(int i)
{
    return i >= 0 && i < TABLES ? tables[i].name : NULL;
}
