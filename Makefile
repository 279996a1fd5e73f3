# Each target does its own set-up, in $(VENV), on a machine that has Python 3.11, make and a C++ compiler.
#
#   make demo        two ranks train, save, are killed, and one resumes
#   make test        the tests, but for those that take minutes or need a GPU;  ARGS="tests/io -k crc32"
#   make test-long   the tests that take minutes or gigabytes
#   make lint        ruff, mypy, clang-format; C++ with warnings as errors; C++ tests under sanitizers
#   make bench       the figures of the README
#   make bench-swapstorm  what a save does to training on a host that is nearly full, with a picture; as root
#   make clean       remove everything that these made
#
# Any of them on another torch, in an environment of its own:  make test TORCH=2.14.1

PYTHON ?= python3
TORCH ?=
VENV ?= $(if $(TORCH),.venv-torch-$(TORCH),.venv)
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
CPP := $(wildcard csrc/*.cpp csrc/*.hpp csrc/tests/*.cpp csrc/tests/*.hpp)
NATIVE := $(CPP) $(wildcard csrc/CMakeLists.txt csrc/tests/CMakeLists.txt)
CMAKE := $(BIN)/cmake -S csrc -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) \
	-DDCP_GDS_WERROR=ON

.PHONY: help demo test test-long lint lint-python lint-native bench bench-swapstorm clean
.DELETE_ON_ERROR:

help:
	@awk '/^$$/ { exit } { sub(/^# ?/, ""); print }' Makefile

demo: $(VENV)/.installed
	$(BIN)/dcp-gds demo $(ARGS)

test: $(VENV)/.installed
	$(BIN)/python -m pytest $(ARGS)

test-long: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: lint-python lint-native

lint-python: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The module is compiled apart from the installed one: whoever installs it has other compilers than we,
# and their warnings must not stop them.
lint-native: $(VENV)/.tools
	$(BIN)/clang-format --dry-run -Werror $(CPP) $(wildcard tests/gdssim/*.[ch] tests/faults/calls/*.[ch]pp dcp_gds/io/*.cu)
	$(CMAKE) -B build/warnings -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	$(BIN)/cmake --build build/warnings
	$(CMAKE) -B build/sanitize -DCMAKE_BUILD_TYPE=RelWithDebInfo -DDCP_GDS_MODULE=OFF \
		-DDCP_GDS_TESTS=ON -DDCP_GDS_SANITIZE=ON
	$(BIN)/cmake --build build/sanitize
	$(BIN)/ctest --test-dir build/sanitize --output-on-failure --no-tests=error

bench: $(VENV)/.installed
	$(BIN)/python -m bench $(ARGS)

bench-swapstorm: $(VENV)/.installed
	$(BIN)/python -m bench.swapstorm $(ARGS)

clean:
	rm -rf build .venv .venv-torch-* .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find dcp_gds tests bench -name __pycache__ -prune -exec rm -rf {} +

# The stamps make a second run start at once. Constraints hold every version, torch's first of all: an open
# range would bring the newest one and gigabytes of CUDA libraries with it.
# NVRTC compiles the CUDA source of the tests. It is pinned here and not in the constraints: a torch for CUDA
# brings a version of its own, and takes this one's place.
$(VENV)/.tools: pyproject.toml .ci/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	sed '$(if $(TORCH),s/^torch==.*/torch==$(TORCH)/)' .ci/constraints.txt > $(VENV)/constraints.txt
	$(PIP) install -c $(VENV)/constraints.txt pip
	$(PIP) install -c $(VENV)/constraints.txt --group dev
	$(PIP) install -c $(VENV)/constraints.txt --no-deps kvikio-cu13 libkvikio-cu13
	$(PIP) install --no-deps nvidia-cuda-nvrtc==13.5.37
	touch $@

# Editable: Python changes need no new installation, and this rule sees those of csrc. The build tools
# come from $(VENV) too, so that they are the pinned ones.
$(VENV)/.installed: $(VENV)/.tools $(NATIVE)
	$(PIP) install -c $(VENV)/constraints.txt --no-build-isolation --editable .
	touch $@
