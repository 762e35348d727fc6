# Two commands for a newcomer: `make demo` and `make test`. Both install what they need into .venv, with pinned versions.
# `make test` is the fast tier, every promise once; `make test-all` is that and the rest. Both compute the same on every
# processor: all tests in fp32, then, in the rest, those of numbers in bf16, emulated if need be.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip, not uv or poetry: constraints.txt pins what the tests ran with.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo docs test test-all test-slow tiers test-oldest kills evidence check install clean

demo: $(VENV)/demo-installed
	$(BIN)/qontext demo --out runs/demo

PYTEST = OMP_NUM_THREADS=1 QONTEXT_AUTO_PRECISION=$(1) $(BIN)/pytest -n $(2) --dist loadscope

test: check
	$(call PYTEST,fp32,2) -m 'not slow'

test-all: test test-slow

# What `make test` leaves out; `make tiers` says what and why.
test-slow: install
	$(call PYTEST,fp32,3) -m slow
	$(call PYTEST,bf16,3) -m numeric $$(grep -lr 'pytest.mark.numeric' tests --include='test_*.py')

tiers: install
	$(BIN)/python -m tests.tiers

# The same with the lowest versions that pyproject.toml declares, in an environment of its own. torch is the largest of
# them: `make test-oldest TORCH=2.13.0` takes another one, such as a build for CPUs that is at hand. Suites that test
# processes rather than libraries are left out.
TORCH ?= $(shell sed -n 's/^ *"torch>=\(.*\)",/\1/p' pyproject.toml)
OLDEST := .venv-oldest

test-oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python tests/oldest.py | sed 's/^torch==.*/torch==$(TORCH)/' > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OLDEST)/constraints.txt -e '.[dev]'
	OMP_NUM_THREADS=1 QONTEXT_AUTO_PRECISION=fp32 $(OLDEST)/bin/pytest -n 2 --dist worksteal \
	  --ignore=tests/kills --ignore=tests/examples --ignore=tests/adapt

# Every command is killed at many moments, not only at one: about half an hour.
kills: install
	QONTEXT_KILLS=12 OMP_NUM_THREADS=1 $(BIN)/pytest tests/kills

# The studies of docs/results/evidence.md and depth.md: runs what is not recorded in evidence/cells, and writes the pages. MORE:
# further options of evidence/run.py, such as --arms or --seeds.
SETS ?= fairytaleqa medquad squad_pool squadshifts_wiki_pool
STUDY = $(BIN)/python evidence/run.py --data $(DATA) --start $(START) --documents $(DOCUMENTS)

evidence: install
	$(if $(and $(DATA),$(START),$(DOCUMENTS)),,$(error make evidence DATA=FOLDER_OF_LABELED_SETS START=MODEL DOCUMENTS=FILE))
	$(STUDY) --scale plain --sets $(SETS) $(MORE)
	$(STUDY) --scale depth $(MORE)
	$(BIN)/python evidence/page.py

# The documentation site, into site/: the pages of docs/ and a reference generated from the code. Nothing in it comes from
# another host, and every page, link and anchor is checked.
docs: $(VENV)/site-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(VENV)/dev-installed

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Qontext needs Python 3.11 or newer: make PYTHON=python3.12 …'; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/demo-installed: $(VENV)/python pyproject.toml constraints.txt
	@echo 'Installing into $(VENV): a minute or two …'
	$(INSTALL) -e '.[demo]'
	touch $@

$(VENV)/site-installed: $(VENV)/python pyproject.toml constraints.txt
	@echo 'Installing into $(VENV): a minute or two …'
	$(INSTALL) -e '.[site]'
	touch $@

$(VENV)/dev-installed: $(VENV)/python pyproject.toml constraints.txt
	@echo 'Installing into $(VENV), with everything that the tests use: a few minutes …'
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/demo-installed $(VENV)/site-installed

clean:
	rm -rf $(VENV) $(OLDEST) runs build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
