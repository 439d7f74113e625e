# sluice: make, make run, make test, make fuzz SECONDS=60, make soak MINUTES=60 [SEED=n],
#   make test-gpu, make vendor, make install PREFIX=/usr/local, make clean.
# Switches: DEBUG=1, SAN=address,undefined | thread, KILL_POINTS=1, WERROR=1, CUDA=0, CC=clang, BUILD=folder, VENDOR=folder.
comma := ,
SAN   ?=
DEBUG ?=
KILL_POINTS ?=
CUDA  ?= $(if $(SAN)$(FUZZ)$(KILL_POINTS),0,1)
BUILD ?= build$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(DEBUG),-debug)$(if $(KILL_POINTS),-kill)
PREFIX ?= /usr/local

# tools/setup.sh writes compiler, -I, -L and rpath here where the system's own do not do.
DEPS_CC :=
DEPS_CFLAGS :=
DEPS_LDFLAGS :=
-include .deps/deps.mk
# make vendor fills a folder with the libraries for a machine that can install nothing; VENDOR=folder builds with it.
VENDOR ?=
ifneq ($(VENDOR),)
VENDOR_ROOT  := $(abspath $(VENDOR))
VENDOR_LIBS  := $(wildcard $(VENDOR_ROOT)/usr/lib/*-linux-gnu $(VENDOR_ROOT)/usr/lib/*-linux-gnu/openblas-pthread $(VENDOR_ROOT)/lib/*-linux-gnu)
DEPS_CFLAGS  := $(addprefix -isystem ,$(wildcard $(VENDOR_ROOT)/usr/include $(VENDOR_ROOT)/usr/include/*-linux-gnu $(VENDOR_ROOT)/usr/include/*-linux-gnu/openblas-pthread))
# The older kind of path holds for the libraries of libraries too.
DEPS_LDFLAGS := -Wl,--disable-new-dtags $(foreach d,$(VENDOR_LIBS),-L$(d) -Wl,-rpath,$(d))
export PATH  := $(VENDOR_ROOT)/bin:$(PATH)
endif
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

# CUDA is found, not required: without it, or with CUDA=0, everything but kernels/cuda is built, and which it was
# is said when a build folder is begun. CUDA_HOME: where CUDA lies; CUDA_WHEELS: the `nvidia` folder of pip's wheels;
# CUDA_ARCH: all (7.5 to 12.0 in one binary, what nvcc knows of them), native, or numbers as in "80 90".
CUDA_SRC    := $(wildcard kernels/cuda/*.cu)
CUDA_C      := $(wildcard kernels/cuda/*.c)
CUDA_ARCH   ?= all
CUDA_WHEELS ?= $(wildcard $(VIRTUAL_ENV:%=%/lib/python3*/site-packages/nvidia) /usr/lib/python3/dist-packages/nvidia \
                 /usr/local/lib/python3*/*-packages/nvidia $(HOME)/.local/lib/python3*/site-packages/nvidia)
first = $(firstword $(wildcard $(foreach d,$(2),$(d)/$(1))))
CUDA_PATHS  := $(CUDA_HOME:%=%/bin) $(subst :, ,$(PATH)) /usr/local/cuda/bin $(CUDA_WHEELS:%=%/*/bin)
NVCC        ?= $(call first,nvcc,$(CUDA_PATHS))
ifeq ($(CUDA),0)
CUDA_WHY  := CUDA=0
else ifeq ($(wildcard $(NVCC)),)
CUDA_WHY  := $(if $(NVCC),$(NVCC) is not there,no nvcc in CUDA_HOME$(comma) PATH$(comma) /usr/local/cuda or pip wheels)
else
CUDA_ROOT := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_INCS := $(CUDA_ROOT)/include $(CUDA_ROOT)/targets/*/include /usr/include /usr/include/*-linux-gnu $(CUDA_WHEELS:%=%/*/include)
CUDA_LIBS := $(CUDA_ROOT)/lib64 $(CUDA_ROOT)/lib $(CUDA_ROOT)/targets/*/lib /usr/lib/*-linux-gnu /usr/lib64 $(CUDA_WHEELS:%=%/*/lib)
CUDA_HDR  := $(foreach h,cuda_runtime_api.h cudnn.h nccl.h,$(or $(call first,$(h),$(CUDA_INCS)),no-$(h)))
# A wheel and a machine without development packages have the numbered names alone.
CUDA_SO   := $(foreach l,cudart cudnn nccl,$(or $(call first,lib$(l).so,$(CUDA_LIBS)),$(call first,lib$(l).so.[0-9]*,$(CUDA_LIBS)),no-lib$(l).so))
CUDA_NOT  := $(patsubst no-%,%,$(filter no-%,$(CUDA_HDR) $(CUDA_SO)))
CUDA_WHY  := $(if $(CUDA_NOT),not found: $(CUDA_NOT))
endif
ifeq ($(CUDA_WHY),)
CUDA_OBJ   := $(patsubst %.cu,$(BUILD)/obj/%.o,$(CUDA_SRC)) $(patsubst %.c,$(BUILD)/obj/%.o,$(CUDA_C))
CUDA_INC   := $(addprefix -isystem ,$(filter-out /usr/include /usr/include/%-linux-gnu,$(patsubst %/,%,$(sort $(dir $(CUDA_HDR))))))
CUDA_DIRS  := $(filter-out /usr/lib64 /usr/lib/%-linux-gnu,$(patsubst %/,%,$(sort $(dir $(CUDA_SO)))))
LIB_CUDA   := $(foreach d,$(CUDA_DIRS),-L$(d) -Wl,-rpath,$(d)) $(addprefix -l:,$(notdir $(CUDA_SO))) -lstdc++ -ldl
ifeq ($(CUDA_ARCH),native)
GENCODE := -arch=native
else
CUDA_KNOWN := $(shell $(NVCC) --list-gpu-code 2>/dev/null)
CUDA_ARCHS := $(if $(filter all,$(CUDA_ARCH)),$(foreach a,75 80 86 89 90 100 120,$(if $(filter sm_$(a),$(CUDA_KNOWN)),$(a))),$(CUDA_ARCH))
GENCODE    := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a))
ifeq ($(CUDA_ARCH),all) # GPUs later than all of them: the driver compiles
GENCODE    += -gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))
endif
endif
CUDA_SAID := CUDA: $(NVCC), $(CUDA_SO), code for $(or $(CUDA_ARCHS),this machine)
else
CUDA_SAID := CUDA: not built: $(CUDA_WHY)
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

# Two trainers of the same objects: the libraries of CUDA are linked into the one for GPUs alone.
PROGRAMS := sluice sluice-loader sluice-trainer sluice-scribe $(if $(CUDA_WHY),,sluice-trainer-cuda)
BINS     := $(addprefix $(BUILD)/bin/,$(PROGRAMS))
TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TEST_SRC))
# Tests with something to do on a GPU: they open one themselves, or through the helpers that do.
GPU_TESTS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/test_cuda_*.c) $(shell grep -lE 'rig_gpu|twin_open|k_cuda_' tests/test_*.c)))
BENCHES  := $(patsubst tests/%.c,$(BUILD)/tests/%,$(BENCH_SRC))
FORMAT   := $(wildcard shm/*.[ch] control/*.[ch] loader/*.[ch] kernels/*.[ch] kernels/*/*.[ch] \
              kernels/cuda/*.cu kernels/cuda/*.cuh trainer/*.[ch] trainer/blocks/*.[ch] tools/*.[ch] tests/*.[ch] \
              tests/*/*.[ch])

.PHONY: always all run tests cuda vendor test test-gpu gpu-tests tests bench fuzz soak setup install clean check-format format
all: $(BINS) $(BUILD)/cuda.txt

setup:
	@$(if $(VENDOR),,tools/setup.sh)
vendor:
	@tools/vendor.sh $(or $(VENDOR),vendor)
# What is known of CUDA here, which a build says once.
cuda:
	@echo '$(CUDA_SAID)'
# A second make, because set-up may write .deps/deps.mk; on every CPU, where -j says nothing else.
jobs = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))
run: setup
	@$(MAKE) --no-print-directory $(jobs) all
	@tools/run.sh $(BUILD)
test: setup
	@$(MAKE) --no-print-directory $(jobs) all tests $(BUILD)/soak
	@$(MAKE) --no-print-directory $(jobs) BUILD=$(BUILD)-kill KILL_POINTS=1 CUDA=0 all $(BUILD)-kill/tests/test_ring_rewind
	@tests/run.sh $(BUILD) -j2
# What needs a GPU, on a machine that has one.
test-gpu: setup
	@$(MAKE) --no-print-directory $(jobs) all gpu-tests
	@tests/gpu/run.sh $(BUILD)
gpu-tests: $(GPU_TESTS)
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
	@$(NVCC) -O3 -std=c++17 -I. $(CUDA_INC) $(GENCODE) $(if $(WERROR),-Werror all-warnings) -lineinfo -MD -MP -c $< -o $@
$(BUILD)/obj/kernels/cuda/%.o $(BUILD)/obj/tests/test_cuda_%.o: ALL_CFLAGS += $(CUDA_INC) $(if $(CUDA_WHY),,-DSLUICE_CUDA)
# Written when it changes: what differs with and without CUDA is then made again, and says so once. A trainer of an
# earlier build with CUDA would be found by the programs of this one.
$(BUILD)/cuda.txt: always
	@mkdir -p $(@D)
	@$(if $(CUDA_WHY),rm -f $(BUILD)/bin/sluice-trainer-cuda)
	@echo '$(CUDA_SAID)' | cmp -s - $@ || echo '$(CUDA_SAID)' | tee $@
$(CUDA_OBJ) $(call obj,$(shell grep -ls SLUICE_CUDA */*.c)): $(BUILD)/cuda.txt
# The model tables are read by the assembler.
$(BUILD)/obj/trainer/models.o: $(wildcard trainer/models/*.yaml)

$(SHM): $(call obj,$(SHM_SRC))
$(CONTROL): $(call obj,$(CONTROL_SRC))
$(LOADER): $(call obj,$(LOADER_SRC))
$(KERNELS): $(call obj,$(KERNELS_SRC))
$(TRAINER): $(call obj,$(TRAINER_SRC))
$(TOOLS): $(call obj,$(TOOLS_SRC))
$(BUILD)/lib/%.a:
	@mkdir -p $(@D)
	@rm -f $@
	@$(AR) rcs $@ $^

# Objects first: a library gives what is missing so far. Those of kernels/cuda are objects, for a weak name takes
# nothing out of a library.
link = @mkdir -p $(@D); echo "  LINK  $@"; $(CC) $(ALL_LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^)
ifeq ($(CUDA_WHY),)
$(BUILD)/bin/sluice-trainer-cuda $(GPU_TESTS): $(CUDA_OBJ)
$(BUILD)/bin/sluice-trainer-cuda $(GPU_TESTS): LIB_GPU := $(LIB_CUDA)
$(BUILD)/bin/sluice-trainer-cuda: $(call obj,trainer/main.c) $(TRAINER) $(CONTROL) $(SHM) $(KERNELS)
	$(link) $(LIB_CONTROL) $(LIB_KERNELS) $(LIB_GPU) $(LIB_SYS)
endif
$(GPU_TESTS): $(BUILD)/cuda.txt
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
	$(link) $(LIB_CONTROL) $(LIB_LOADER) $(LIB_KERNELS) $(LIB_GPU) -lcmocka $(LIB_SYS)
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
	$(if $(CUDA_WHY),rm -f $(DESTDIR)$(PREFIX)/bin/sluice-trainer-cuda)
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
