# make demo   sets everything up in .venv and runs the main job on two programs: under 5 minutes
# make test   sets everything up in .venv and runs the linters, the type checker and the tests; make test-all runs more
# make check OP=softmax   checks one op in two minutes: its files, types and pages, and all that is asked of every op
# make wheel  builds dist/kernelworks-*.whl, with the ladders, examples, certificates and tuning records inside
# Either sets up once; a second run starts at once. `make clean` forgets the set-up.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-all check lint learn-flakes docs site wheel clean

VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps

# The first Python on the PATH that is 3.11 or later and can make a virtual environment.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

help:
	@sed -n 's/^# //p' Makefile | head -5

$(STAMPS)/venv:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later with the venv module on the PATH (Debian: apt install python3-venv)" >&2; exit 2; }
	@command -v "$${KERNELWORKS_CXX:-g++}" >/dev/null || echo "no C++ compiler: kernels of ours cannot be built, torch's run instead (Debian: apt install g++)" >&2
	@echo "Set-up, once: a virtual environment with $$(grep ^torch== constraints.txt), one or two minutes, kept in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# Versions are pinned by constraints.txt, torch among them. pip takes a minute or two; a dot every five seconds says that
# it is at work. Without a GPU torch comes from its own index, if that answers: there it is 0.2 GB without CUDA, not 3.
CPU_INDEX := https://download.pytorch.org/whl/cpu
comma := ,
define installed
index=; command -v nvidia-smi >/dev/null || ! $(BIN)/python -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=5)' \
	$(CPU_INDEX)/torch/ >/dev/null 2>&1 || index=$(CPU_INDEX); \
$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt $${index:+--extra-index-url $$index} \
	--editable '$(1)' & \
	while kill -0 $$! 2>/dev/null; do sleep 5; printf . >&2; done; echo >&2; wait $$!
endef

$(STAMPS)/demo: $(STAMPS)/venv pyproject.toml constraints.txt
	@$(call installed,.[demo])
	@touch $@

$(STAMPS)/test: $(STAMPS)/venv pyproject.toml constraints.txt
	@$(call installed,.[dev$(comma)examples])
	@touch $@ $(STAMPS)/demo

# What the demo does is in tools/demo.py. BUDGET=60 gives each program so many seconds of optimizations.
demo: $(STAMPS)/demo
	@$(BIN)/python tools/demo.py $(if $(BUDGET),--budget $(BUDGET))

lint: $(STAMPS)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports --no-cache

# Half of the tests measure, beside another worker and whoever else is on the machine. What fails runs once more with the
# machine to itself; what fails then has failed. The linters run beside the first tests, which wait for a compiler.
test: $(STAMPS)/test
	@$(MAKE) --no-print-directory lint & linted=$$!; \
	$(BIN)/python -m pytest -n 2 --dist worksteal || { [ $$? = 1 ] && echo "what failed, once more and alone:" && \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none; } || { wait $$linted; exit 1; }; \
	wait $$linted || { echo "the tests hold; the linters do not: make lint" >&2; exit 1; }
	@echo "kernels to verify again where such a machine is:"; $(BIN)/kernelworks map --stale

# The inner loop of an op's recipe: tools/check_op.py.
check: $(STAMPS)/test
	@$(BIN)/python tools/check_op.py $(OP)

# What a night has time for: every repetition that `make test` leaves out.
test-all: lint
	$(BIN)/python -m pytest --all -n 2 --dist worksteal

# Every file of the course checked N times: what is not said each time is printed and counted. Takes minutes a round.
learn-flakes: $(STAMPS)/test
	@$(BIN)/python tools/learn_flakes.py $(or $(N),20)

# Rewrites what is generated: ops/generated.py, the ladders' documents, the tables between the markers of pages, and
# docs/reference/{cli,api,kernelbench,op-records,ops,limits,attacks}.md.
docs: $(STAMPS)/demo
	$(BIN)/python tools/schemas.py
	$(BIN)/python -m kernelworks.climb.command
	$(BIN)/python tools/readme.py
	$(BIN)/python tools/reference_pages.py
	$(BIN)/kernelworks map --markdown docs/reference/ops.md
	PYTHONPATH=tests/support $(BIN)/python tests/limits/limits.py
	$(BIN)/python tests/judge/attack_table.py

$(STAMPS)/site: $(STAMPS)/demo
	@$(call installed,.[site])
	@touch $@

# The documentation and the ladders' pages as one site in out/site, which needs no server. Any warning is an error.
site: $(STAMPS)/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open out/site/index.html in a browser"

# Another machine needs nothing else: pip install dist/kernelworks-*.whl
wheel: $(STAMPS)/venv
	@rm -rf dist
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) $(STAMPS) out dist
