# make setup | demo | test | test-long | bench | lint
# PIP_ARGS is passed to every pip install (an extra index for CPU wheels of torch, say).

PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
BIN := $(VENV)/bin
JOBS ?= 2
MODEL := examples/models/tiny-v3
BACKENDS := $(patsubst %/pyproject.toml,%,$(wildcard backends/cuda_sm10/pyproject.toml backends/ascend950/pyproject.toml))
PROMPT ?= def parse_config(path):

.PHONY: setup native demo test test-long bench lint docs clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt $(wildcard backends/*/pyproject.toml) Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip<27"
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt torch
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e ".[test,lint]"
	for backend in $(BACKENDS); do \
	  $(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt -e "./$$backend[test]" || exit 1; \
	done
	$(MAKE) native
	touch $@

# The simulators and the example backend; needs g++ and cmake, no GPU, NPU or vendor toolkit.
native:
	cmake -S . -B build -DCMAKE_BUILD_TYPE=Release > /dev/null
	cmake --build build --parallel $(JOBS) > build/build.log 2>&1 || { tail -50 build/build.log; exit 1; }

demo: setup
	$(BIN)/deepinfer doctor
	$(BIN)/deepinfer generate $(MODEL) "$(PROMPT)" --max-tokens 320 --temperature 0.6 --top-p 0.9 --seed 1

test: setup
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not long"
	$(BIN)/deepinfer conformance cpu --quick --jobs $(JOBS)

test-long: setup
	$(BIN)/python -m pytest -q -n $(JOBS)
	mkdir -p build
	$(BIN)/deepinfer conformance cpu --report build/conformance-cpu.json
	$(BIN)/python -m deepinfer.conformance.evidence build/conformance-cpu.json bench/evidence/cpu.jsonl \
		--commit $$(git describe --always --dirty=+)
	$(BIN)/python -m deepinfer.conformance.docs

bench: setup
	$(BIN)/deepinfer bench run --backend cpu --out build/bench.jsonl
	$(BIN)/deepinfer bench picture build/bench.jsonl build/bench.svg

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/python -m deepinfer.conformance.docs

clean:
	rm -rf build $(VENV)
