# sluice: make, make run, make test, make fuzz SECONDS=60, make soak MINUTES=60 [SEED=n],
#   make install PREFIX=/usr/local, make clean.
# Switches: DEBUG=1, SAN=address,undefined | thread, KILL_POINTS=1, WERROR=1, CUDA=0, CC=clang, BUILD=folder.
comma := ,
SAN   ?=
DEBUG ?=
KILL_POINTS ?=
CUDA  ?= 1
BUILD ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(DEBUG),-debug)$(if $(KILL_POINTS),-kill)
PREFIX ?= /usr/local

# tools/setup.sh writes compiler, -I, -L and rpath here where the system's own do not do.
DEPS_CC :=
DEPS_CFLAGS :=
DEPS_LDFLAGS :=
-include .deps/deps.mk
ifeq ($(origin CC),default)
CC := $(or $(DEPS_CC),gcc)
endif
AR := $(or $(DEPS_AR),ar)

CFLAGS ?= -O2 -g
STD    := -std=c17 -D_GNU_SOURCE -I.
WARN   := -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla
ifneq ($(DEBUG),)
CFLAGS := -O0 -g3 -DSLUICE_DEBUG
endif
ifneq ($(SAN),)
CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -DSLUICE_SANITIZE
LDSAN  := -fsanitize=$(SAN)
endif
ifneq ($(KILL_POINTS),)
CFLAGS += -DSLUICE_KILL_POINTS
endif
# A build of its own, which make fuzz asks for: clang, coverage for libFuzzer, and a finding ends it.
ifneq ($(FUZZ),)
CFLAGS := -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-pass-failed \
          -DSLUICE_SANITIZE -fsanitize=fuzzer-no-link,address,undefined
LDSAN  := -fsanitize=fuzzer,address,undefined
endif
ifneq ($(WERROR),)
WARN   += -Werror
endif
ALL_CFLAGS = $(STD) $(CFLAGS) $(WARN) $(DEPS_CFLAGS) -MMD -MP
ALL_LDFLAGS = $(LDSAN) $(DEPS_LDFLAGS) $(LDFLAGS)

# One library a folder; dependencies point one way (design 2), which is the order of linking too.
SHM_SRC     := $(wildcard shm/*.c)
CONTROL_SRC := $(wildcard control/*.c)
LOADER_SRC  := $(filter-out loader/main.c,$(wildcard loader/*.c))
KERNELS_SRC := $(wildcard kernels/*.c kernels/cpu/*.c)
TRAINER_SRC := $(filter-out trainer/main.c,$(wildcard trainer/*.c trainer/blocks/*.c))
TOOLS_SRC   := $(filter-out tools/sluice.c tools/scribe_main.c,$(wildcard tools/*.c))
TEST_SRC    := $(wildcard tests/test_*.c)
BENCH_SRC   := $(wildcard tests/bench_*.c)
FUZZ_MAIN   := tests/fuzz/libfuzzer.c
TEST_LIB    := $(filter-out $(TEST_SRC) $(BENCH_SRC) tests/slowfs.c,$(wildcard tests/*.c)) \
               $(filter-out $(FUZZ_MAIN),$(wildcard tests/fuzz/*.c))
obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

LIB_CONTROL := -lzmq -lyaml
LIB_LOADER  := -ljpeg -lpng -luring
LIB_KERNELS := -lopenblas
LIB_SYS     := -lm -lpthread

# CUDA is found, not required: without nvcc, or with CUDA=0, everything but that backend is built.
CUDA_SRC := $(wildcard kernels/cuda/*.cu)
NVCC     ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc))
ifneq ($(CUDA),0)
ifneq ($(and $(CUDA_SRC),$(NVCC)),)
CUDA_OBJ    := $(patsubst %.cu,$(BUILD)/obj/%.o,$(CUDA_SRC))
STD         += -DSLUICE_CUDA
LIB_KERNELS += -L$(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))/lib64 -lcudart -lstdc++
endif
endif

# The pixel code: no fast-math, no contraction (design 4). The kernels: contraction allowed, no errno.
FAST := $(if $(DEBUG),,-O3)
$(BUILD)/obj/loader/%.o:  ALL_CFLAGS += $(FAST) -ffp-contract=off
$(BUILD)/obj/kernels/%.o: ALL_CFLAGS += $(FAST) -fno-math-errno -fno-trapping-math -ffp-contract=fast

SHM     := $(BUILD)/lib/libshm.a
CONTROL := $(BUILD)/lib/libcontrol.a
LOADER  := $(BUILD)/lib/libloader.a
KERNELS := $(BUILD)/lib/libkernels.a
TRAINER := $(BUILD)/lib/libtrainer.a
TOOLS   := $(BUILD)/lib/libtools.a

PROGRAMS := sluice sluice-loader sluice-trainer sluice-scribe
BINS     := $(addprefix $(BUILD)/bin/,$(PROGRAMS))
TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TEST_SRC))
BENCHES  := $(patsubst tests/%.c,$(BUILD)/tests/%,$(BENCH_SRC))
FORMAT   := $(wildcard shm/*.[ch] control/*.[ch] loader/*.[ch] kernels/*.[ch] kernels/*/*.[ch] \
              kernels/cuda/*.cu trainer/*.[ch] trainer/blocks/*.[ch] tools/*.[ch] tests/*.[ch] \
              tests/*/*.[ch])

.PHONY: all run tests test bench fuzz soak setup install clean check-format format
all: $(BINS)

setup:
	@tools/setup.sh
# A second make, because set-up may write .deps/deps.mk; on every CPU, where -j says nothing else.
jobs = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
run: setup
	@$(MAKE) --no-print-directory $(jobs) all
	@tools/run.sh $(BUILD)
test: setup
	@$(MAKE) --no-print-directory $(jobs) all tests $(BUILD)/soak
	@$(MAKE) --no-print-directory $(jobs) BUILD=$(BUILD)-kill KILL_POINTS=1 all $(BUILD)-kill/tests/test_ring_rewind
	@tests/run.sh $(BUILD) -j2
tests: $(TESTS) $(BUILD)/tests/slowfs $(BUILD)/poorly $(BUILD)/wallclock.so
bench: $(BENCHES)
bench-%: $(BUILD)/tests/bench_%
	@$<

# Each target for SECONDS, on every CPU; tests/fuzz/run.sh ends with a table and fails with a finding.
SECONDS ?= 60
CLANG   ?= $(or $(shell command -v clang 2>/dev/null),$(shell command -v clang-14 2>/dev/null))
fuzz: fuzz-all
fuzz-%:
	@[ -n "$(CLANG)" ] || { echo "make fuzz needs clang, for its libFuzzer; make test runs the same targets without it"; exit 1; }
	@$(MAKE) --no-print-directory $(jobs) BUILD=$(BUILD)/fuzz CC="$(CLANG)" FUZZ=1 CUDA=0 $(BUILD)/fuzz/fuzz
	@tests/fuzz/run.sh $(BUILD)/fuzz $(SECONDS) $(filter-out all,$*)

# Kills, stops, scalings and resumes for MINUTES; SEED repeats what was done; TMPDIR should have 1 GB.
MINUTES ?= 60
soak: all $(BUILD)/soak
	@tests/soak/run.sh $(BUILD) $(MINUTES) $(SEED)

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CC) $(ALL_CFLAGS) -c $< -o $@
$(BUILD)/obj/%.o: %.cu
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	@$(NVCC) -O3 -I. -DSLUICE_CUDA -Xcompiler -fPIC -MD -MP -c $< -o $@
# The model tables are read by the assembler.
$(BUILD)/obj/trainer/models.o: $(wildcard trainer/models/*.yaml)

$(SHM): $(call obj,$(SHM_SRC))
$(CONTROL): $(call obj,$(CONTROL_SRC))
$(LOADER): $(call obj,$(LOADER_SRC))
$(KERNELS): $(call obj,$(KERNELS_SRC)) $(CUDA_OBJ)
$(TRAINER): $(call obj,$(TRAINER_SRC))
$(TOOLS): $(call obj,$(TOOLS_SRC))
$(BUILD)/lib/%.a:
	@mkdir -p $(@D)
	@rm -f $@
	@$(AR) rcs $@ $^

link = @mkdir -p $(@D); echo "  LINK  $@"; $(CC) $(ALL_LDFLAGS) -o $@ $^
$(BUILD)/bin/sluice: $(call obj,tools/sluice.c) $(TOOLS) $(LOADER) $(TRAINER) $(CONTROL) $(SHM) $(KERNELS)
	$(link) $(LIB_CONTROL) $(LIB_LOADER) $(LIB_KERNELS) $(LIB_SYS)
$(BUILD)/bin/sluice-loader: $(call obj,loader/main.c) $(LOADER) $(CONTROL) $(SHM)
	$(link) $(LIB_CONTROL) $(LIB_LOADER) $(LIB_SYS)
$(BUILD)/bin/sluice-trainer: $(call obj,trainer/main.c) $(TRAINER) $(CONTROL) $(SHM) $(KERNELS)
	$(link) $(LIB_CONTROL) $(LIB_KERNELS) $(LIB_SYS)
$(BUILD)/bin/sluice-scribe: $(call obj,tools/scribe_main.c) $(TOOLS) $(CONTROL) $(SHM)
	$(link) $(LIB_CONTROL) $(LIB_SYS)
$(BUILD)/lib/libtests.a: $(call obj,$(TEST_LIB))
$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(BUILD)/lib/libtests.a $(TOOLS) $(LOADER) $(TRAINER) $(CONTROL) $(SHM) $(KERNELS)
	$(link) $(LIB_CONTROL) $(LIB_LOADER) $(LIB_KERNELS) -lcmocka $(LIB_SYS)
$(BUILD)/fuzz: $(call obj,$(FUZZ_MAIN)) $(BUILD)/lib/libtests.a $(TOOLS) $(LOADER) $(TRAINER) $(CONTROL) $(SHM) $(KERNELS)
	$(link) $(LIB_CONTROL) $(LIB_LOADER) $(LIB_KERNELS) -lcmocka $(LIB_SYS)
$(BUILD)/soak: $(call obj,$(wildcard tests/soak/*.c))
	$(link)
$(BUILD)/poorly: $(call obj,tests/poor/poorly.c)
	$(link)
$(BUILD)/wallclock.so: tests/poor/wallclock.c
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(STD) $(WARN) -O2 -shared -fPIC -o $@ $< -ldl
.SECONDARY:

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/sluice
	install $(BINS) $(DESTDIR)$(PREFIX)/bin
	install -m 644 pipeline.yaml README.md $(DESTDIR)$(PREFIX)/share/sluice

CLANG_FORMAT ?= $(or $(shell command -v clang-format-14 2>/dev/null),clang-format)
check-format:
	@$(CLANG_FORMAT) --dry-run -Werror $(FORMAT)
format:
	@$(CLANG_FORMAT) -i $(FORMAT)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
