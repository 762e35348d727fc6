# Two commands for a newcomer: `make demo` and `make test`. Both install what they need into .venv, with pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip, not uv or poetry: constraints.txt pins what the tests ran with.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check install clean

demo: $(VENV)/demo-installed
	$(BIN)/qontext demo --out runs/demo

test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

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

$(VENV)/dev-installed: $(VENV)/python pyproject.toml constraints.txt
	@echo 'Installing into $(VENV), with everything that the tests use: a few minutes …'
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/demo-installed

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
