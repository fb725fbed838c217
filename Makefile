# A fresh clone needs Python >= 3.10, a C compiler and make. Everything else, cmake included, comes from wheels into
# .venv.
PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
VENV := .venv
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
CMAKE = $(BIN)/cmake -G Ninja -S . --log-level=WARNING -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Side by side what does not need each other, as one pip leaves a core idle; not beside what removes or writes files.
MAKEFLAGS += $(if $(filter clean format bindings,$(MAKECMDGOALS)),,-j$(JOBS))

C_FOLDERS = backend include compat tests/c tests/cudnn_library tests/emulator tests/fake_cuda \
	tests/foreign samples
C_FILES = $(shell find $(C_FOLDERS) -name '*.[ch]' -o -name '*.[ch]pp' -o -name '*.cuh')

help:
	@echo "make demo       build, then run python -m weft demo"
	@echo "make check      a minute while you work: lint, most C tests under sanitizers, quick Python tests"
	@echo "make test       what a change must pass: lint, sanitizers, tests (TORCH=1, JAX=1: with PyTorch, JAX)"
	@echo "make test-all   everything, for hours: all cases, all of tests/ops on the emulated GPU, then a summary"
	@echo "make bench      build, then run python -m benchmarks (BENCH='matmul --quick' passes its options)"
	@echo "make build      the libraries, into python/weft/lib"
	@echo "make sanitize   the C tests under ASan and UBSan (SANITIZE=thread for TSan)"
	@echo "make aarch64    the C tests for 64-bit ARM, with Debian's gcc-aarch64-linux-gnu"
	@echo "make emulated   all tests of operations on the emulated GPU; goes on where it stopped (PARTS='--seconds 600')"
	@echo "make coverage   lines and branches of the C library that tests reach (PYTEST=... for some tests)"
	@echo "make mutants    whether tests notice 20 small changes, of all sources or of FILE (SAMPLE=100, 0: all; SEED=2)"
	@echo "make lint       formatting, style and types;   make format repairs the formatting"
	@echo "make tidy       names in C, by clang-tidy"
	@echo "make bindings   writes the generated files anew from the headers and the library"
	@echo "make clean      removes build/ and the built library;   .venv stays"

# ---- Set-up: done once, and again when pyproject.toml changes; one pip at a time ----

TOO_OLD = "Weft needs Python 3.10 or newer; say which: make PYTHON=..."
SITE = import site; print(site.getsitepackages()[0])

# What compiles: the library is built while the other tools are installed.
$(VENV)/.cmake: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and $(TOO_OLD))'
	@echo "set-up: tools into .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade "pip>=25.1"
	@$(PIP) install --group build
	@touch $@

$(VENV)/.ready: $(VENV)/.cmake
	@$(PIP) install --group dev
	@printf '%s\n' "$(CURDIR)/python" "$(CURDIR)/bindings" > "$$($(BIN)/python -c '$(SITE)')/weft.pth"
	@touch $@

$(VENV)/.torch: $(VENV)/.ready
	@echo "set-up: PyTorch into .venv"
	@$(PIP) install torch==2.13.0 expecttest
	@touch $@

$(VENV)/.jax: $(VENV)/.ready | $(if $(TORCH),$(VENV)/.torch)
	@echo "set-up: JAX into .venv"
	@$(PIP) install jax==0.10.2
	@touch $@

$(VENV)/.mutants: $(VENV)/.ready
	@echo "set-up: universalmutator into .venv"
	@$(PIP) install --group mutants
	@touch $@

$(VENV)/.tidy: $(VENV)/.ready
	@echo "set-up: clang-tidy into .venv"
	@$(PIP) install --group tidy
	@touch $@

# ---- Building ----

build: $(VENV)/.cmake
	@$(CMAKE) -B build/release -DWEFT_PYTHON_LIB_DIR=python/weft/lib -DWEFT_CUDNN=ON $(WERROR) >/dev/null
	@$(BIN)/cmake --build build/release -j$(JOBS) -- --quiet

# Assertions are on here (Debug), warnings are errors; ONLY names the programs to build. Running them is left to pytest
# or ctest.
SANITIZE ?= address,undefined
SANITIZE_DIR = build/$(if $(filter thread,$(SANITIZE)),tsan,asan)
sanitize: $(VENV)/.cmake
	@$(CMAKE) -B $(SANITIZE_DIR) -DCMAKE_BUILD_TYPE=Debug -DWEFT_SANITIZE=$(SANITIZE) -DWEFT_BUILD_TESTS=ON \
		-DWEFT_CUDNN=ON -DWEFT_WERROR=ON >/dev/null
	@$(BIN)/cmake --build $(SANITIZE_DIR) -j$(JOBS) $(addprefix --target ,$(ONLY)) -- --quiet

# The C tests for 64-bit ARM, which QEMU runs; ONLY as above.
aarch64: $(VENV)/.cmake
	@$(CMAKE) -B build/aarch64 --toolchain cmake/aarch64.cmake -DWEFT_BUILD_TESTS=ON $(WERROR) >/dev/null
	@$(BIN)/cmake --build build/aarch64 -j$(JOBS) $(addprefix --target ,$(ONLY)) -- --quiet

bindings: build $(VENV)/.ready
	@$(BIN)/python tools/gen.py
	@$(BIN)/python compat/cudnn/generate.py

# ---- Running ----

demo: build $(VENV)/.ready
	@$(BIN)/python -m weft demo

bench: build $(VENV)/.ready
	@$(BIN)/python -m benchmarks $(BENCH)

# The tests of tests/tiers.py alone are collected, linked and run.
check: WERROR = -DWEFT_WERROR=ON
check: ONLY = $(shell $(BIN)/python tests/tiers.py c)
check: lint build sanitize
	@WEFT_TEST_TIER=check $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $$($(BIN)/python tests/tiers.py)

test: WERROR = -DWEFT_WERROR=ON
test: $(if $(TORCH),$(VENV)/.torch) $(if $(JAX),$(VENV)/.jax) lint build sanitize
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST)

# All of tests/ops on the emulated GPU, as each generation of chips, from where the last run stopped.
emulated: build $(VENV)/.ready
	@$(BIN)/python tests/emulated_parts.py --jobs $(JOBS) $(PARTS)
	@$(BIN)/python tools/kernel_coverage.py check

# Goes on after a failure, so that a night reports all of them.
test-all: $(VENV)/.torch $(VENV)/.jax lint build sanitize
	@rc=0; export WEFT_TEST_TIER=all; \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST) || rc=1; \
	$(MAKE) --no-print-directory emulated || rc=1; exit $$rc

# A library that counts its lines; Python tests and C tests add to the same counts until make clean.
COVERAGE_TESTS = tests/ops tests/test_plans.py tests/test_emulated.py tests/python
COVERAGE_TESTS += $(if $(TORCH),tests/weft_torch)
coverage: $(VENV)/.ready
	@$(CMAKE) -B build/coverage -DCMAKE_BUILD_TYPE=None -DWEFT_BUILD_TESTS=ON \
		-DCMAKE_C_FLAGS="-O1 --coverage -fprofile-update=atomic" >/dev/null
	@$(BIN)/cmake --build build/coverage -j$(JOBS) -- --quiet
	-@$(if $(PYTEST),,cd build/coverage && ctest --quiet -j$(JOBS))
	-@WEFT_LIBRARY=$(CURDIR)/build/coverage/libweft.so.1 $(BIN)/python -m pytest -n $(JOBS) \
		$(or $(PYTEST),$(COVERAGE_TESTS))
	@$(BIN)/python tools/host_coverage.py

mutants: $(VENV)/.mutants
	@$(BIN)/python tools/mutants.py --sample $(or $(SAMPLE),20) --seed $(or $(SEED),1) $(FILE)

# Types and formatting side by side: each takes seconds.
lint: lint-types lint-format

lint-types: $(VENV)/.ready
	@$(BIN)/mypy --no-error-summary

lint-format: $(VENV)/.ready
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --quiet --diff .
	@$(BIN)/python tools/sizes.py --check
	@$(BIN)/clang-format --dry-run -Werror $(C_FILES)

tidy: build $(VENV)/.tidy
	@find backend compat/torch compat/xla -name '*.c' | \
		xargs -P $(JOBS) -n 16 $(BIN)/clang-tidy -p build/release --quiet

format: $(VENV)/.ready
	@$(BIN)/clang-format -i $(C_FILES)
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

clean:
	rm -rf build dist python/weft/lib

.PHONY: help build sanitize aarch64 bindings demo bench check test test-all emulated coverage mutants lint lint-types \
	lint-format format clean
