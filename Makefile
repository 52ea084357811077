# Every target sets up what it needs by itself and is quick when that is done already.
#   TORCH=torch==2.12.0   another torch        PYTHON=python3.12   another interpreter
#   TESTS=tests/cli       fewer tests          ARGS=...            more words for the tool

export TORCH PYTHON

VENV_PYTHON := .venv/bin/python
TESTS ?= tests

# Tests that look at the tree itself: layers, exported names, documentation, receipts.
HOUSE_TESTS := tests/test_layers.py tests/test_exports.py tests/test_documentation.py \
	tests/test_receipts.py

.PHONY: setup demo test check format bench clean

setup:
	@tools/set_up.sh test

demo: setup
	@tools/demo.sh

test: setup
	$(VENV_PYTHON) -m pytest $(TESTS) $(ARGS)

check:
	@tools/set_up.sh test check
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m mypy
	.venv/bin/clang-format --dry-run -Werror $$(find csrc -name '*.?pp')
	.venv/bin/interrogate --quiet src
	$(VENV_PYTHON) -m pytest $(HOUSE_TESTS)

format:
	@tools/set_up.sh test check
	$(VENV_PYTHON) -m ruff format .
	$(VENV_PYTHON) -m ruff check --fix .
	.venv/bin/clang-format -i $$(find csrc -name '*.?pp')

bench: setup
	$(VENV_PYTHON) -m benchmarks.run $(ARGS)

clean:
	rm -rf .venv build
