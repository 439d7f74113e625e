# sluice: build, run, test. Switches: DEBUG=1, SAN=address|undefined|thread, WERROR=1, BUILD=folder.
BUILD  ?= build
CC     ?= gcc
CFLAGS ?= -O2 -g
STD    := -std=c17 -D_GNU_SOURCE -I.
WARN   := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla

ifdef DEBUG
CFLAGS := -O0 -g3 -DSLUICE_DEBUG
endif
ifdef SAN
CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -DSLUICE_SANITIZE
LDSAN  := -fsanitize=$(SAN)
endif
ifdef WERROR
WARN   += -Werror
endif

ALL_CFLAGS = $(STD) $(CFLAGS) $(WARN) -MMD -MP

# One library a folder; dependencies point one way (design 2).
SHM_SRC     := $(wildcard shm/*.c)
CONTROL_SRC := $(wildcard control/*.c)
LOADER_SRC  := $(filter-out loader/main.c,$(wildcard loader/*.c))
KERNELS_SRC := $(wildcard kernels/*.c kernels/cpu/*.c)
TRAINER_SRC := $(filter-out trainer/main.c,$(wildcard trainer/*.c trainer/blocks/*.c))
TOOLS_SRC   := $(filter-out tools/sluice.c tools/scribe_main.c,$(wildcard tools/*.c))
TEST_SRC    := $(wildcard tests/test_*.c)
TEST_LIB    := $(filter-out $(TEST_SRC),$(wildcard tests/*.c))

obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

# The pixel code: no fast-math, no contraction (design 4). The kernels: contraction allowed, no errno.
$(BUILD)/obj/loader/%.o:  ALL_CFLAGS += -O3 -ffp-contract=off
$(BUILD)/obj/kernels/%.o: ALL_CFLAGS += -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast

LIB_CONTROL := -lzmq -lyaml
LIB_LOADER  := -ljpeg -lpng -luring
LIB_KERNELS := -lopenblas
LIB_SYS     := -lm -lpthread

SHM     := $(BUILD)/lib/libshm.a
CONTROL := $(BUILD)/lib/libcontrol.a
LOADER  := $(BUILD)/lib/libloader.a
KERNELS := $(BUILD)/lib/libkernels.a
TRAINER := $(BUILD)/lib/libtrainer.a
TOOLS   := $(BUILD)/lib/libtools.a

BINS := $(BUILD)/bin/sluice $(BUILD)/bin/sluice-loader $(BUILD)/bin/sluice-trainer $(BUILD)/bin/sluice-scribe
TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TEST_SRC))

.PHONY: all test clean
all: $(BINS)

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -c $< -o $@

$(SHM): $(call obj,$(SHM_SRC))
$(CONTROL): $(call obj,$(CONTROL_SRC))
$(LOADER): $(call obj,$(LOADER_SRC))
$(KERNELS): $(call obj,$(KERNELS_SRC))
$(TRAINER): $(call obj,$(TRAINER_SRC))
$(TOOLS): $(call obj,$(TOOLS_SRC))
$(BUILD)/lib/%.a:
	@mkdir -p $(@D)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/bin/sluice: $(call obj,tools/sluice.c) $(TOOLS) $(LOADER) $(TRAINER) $(CONTROL) $(SHM) $(KERNELS)
	@mkdir -p $(@D)
	$(CC) $(LDSAN) -o $@ $^ $(LIB_CONTROL) $(LIB_LOADER) $(LIB_KERNELS) $(LIB_SYS)
$(BUILD)/bin/sluice-loader: $(call obj,loader/main.c) $(LOADER) $(CONTROL) $(SHM)
	@mkdir -p $(@D)
	$(CC) $(LDSAN) -o $@ $^ $(LIB_CONTROL) $(LIB_LOADER) $(LIB_SYS)
$(BUILD)/bin/sluice-trainer: $(call obj,trainer/main.c) $(TRAINER) $(CONTROL) $(SHM) $(KERNELS)
	@mkdir -p $(@D)
	$(CC) $(LDSAN) -o $@ $^ $(LIB_CONTROL) $(LIB_KERNELS) $(LIB_SYS)
$(BUILD)/bin/sluice-scribe: $(call obj,tools/scribe_main.c) $(TOOLS) $(CONTROL) $(SHM)
	@mkdir -p $(@D)
	$(CC) $(LDSAN) -o $@ $^ $(LIB_CONTROL) $(LIB_SYS)

$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(call obj,$(TEST_LIB)) $(TOOLS) $(LOADER) $(TRAINER) $(CONTROL) $(SHM) $(KERNELS)
	@mkdir -p $(@D)
	$(CC) $(LDSAN) -o $@ $^ $(LIB_CONTROL) $(LIB_LOADER) $(LIB_KERNELS) -lcmocka $(LIB_SYS)

tests: $(TESTS)
test: all tests
	tests/run.sh $(BUILD)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
