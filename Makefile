# Every target sets up what it needs by itself and is quick when that is done already.
#   TORCH=torch==2.12.0   another torch        PYTHON=python3.12   another interpreter
#   TESTS=tests/cli       fewer tests          ARGS=...            more words for the tool
#   JOBS=4                test processes  ENVIRONMENTS="A B"   those of make check-environments
#   PYTHONS="A B"         those that wheels are built and tried with    MACHINE=aarch64   theirs

export TORCH PYTHON

VENV_PYTHON := .venv/bin/python
TESTS ?= tests
JOBS ?= 2

# Tests that look at the tree itself: layers, exported names, documentation, receipts.
HOUSE_TESTS := tests/test_layers.py tests/test_exports.py tests/test_types.py tests/test_documentation.py \
	tests/benchmarks/test_receipts.py tests/tools/test_check_numbers.py

CHECKS := check-installed check-format check-lint check-types check-native check-docstrings \
	check-numbers check-house

.PHONY: setup setup-check setup-vllm demo test test-vllm check $(CHECKS) format pages bench sanitize wheel check-wheel \
	check-environments clean

setup:
	@tools/set_up.sh test

# The demo needs less than the tests.
demo:
	@tools/set_up.sh transformers
	@tools/demo.sh

test: setup
	$(VENV_PYTHON) -m pytest --numprocesses $(JOBS) --dist worksteal $(TESTS) $(ARGS)

# vLLM and the extra `transformers` exclude each other, so its tests have an environment of their own.
setup-vllm:
	@tools/set_up.sh --vllm

test-vllm: setup-vllm
	.venv-vllm/bin/python -m pytest --numprocesses $(JOBS) --dist worksteal \
		$(if $(filter-out tests,$(TESTS)),$(TESTS),tests/vllm_cpu) $(ARGS)

# `make -k check` goes on after a failure, to show them all.
check: $(CHECKS)

$(CHECKS): setup-check

setup-check:
	@tools/set_up.sh test check

# What only an earlier hand installed would be missing on a new machine.
check-installed:
	$(VENV_PYTHON) -m tools.check_installed

check-format:
	$(VENV_PYTHON) -m ruff format --check .

check-lint:
	$(VENV_PYTHON) -m ruff check .

check-types:
	$(VENV_PYTHON) -m mypy

check-native:
	.venv/bin/clang-format --dry-run -Werror $$(find csrc tests/native -name '*.?pp')

check-docstrings:
	.venv/bin/interrogate --quiet src

# Numbers without a receipt fail; receipts of code that has changed since are listed.
check-numbers:
	$(VENV_PYTHON) -m tools.check_numbers
	$(VENV_PYTHON) -m tools.list_stale_receipts

check-house:
	$(VENV_PYTHON) -m pytest $(HOUSE_TESTS)

format: setup-check
	$(VENV_PYTHON) -m ruff format .
	$(VENV_PYTHON) -m ruff check --fix .
	.venv/bin/clang-format -i $$(find csrc tests/native -name '*.?pp')

# Writes what the documentation takes from receipts and from the code.
pages: setup
	$(VENV_PYTHON) -m tools.write_measurements_page
	$(VENV_PYTHON) tools/write_settings_page.py
	$(VENV_PYTHON) tools/fill_behaviours_page.py
	$(VENV_PYTHON) tools/rooms.py
	$(VENV_PYTHON) -m tools.draw_pictures

bench: setup
	$(VENV_PYTHON) -m benchmarks.run $(ARGS)

# The core's threads under ThreadSanitizer, then AddressSanitizer with UndefinedBehaviorSanitizer.
# Takes some ten minutes of two cores the first time: most of it compiles.
sanitize: setup
	$(VENV_PYTHON) -m tools.sanitize_threads

# The source archive and the wheels of a release, in dist/; see CONTRIBUTING.md.
wheel:
	@tools/set_up.sh wheel
	$(VENV_PYTHON) -m tools.make_wheel $(if $(MACHINE),--machine $(MACHINE)) \
		$(if $(PYTHONS),--pythons $(PYTHONS))

# Uses the wheels in empty environments without a compiler; torch alone may take gigabytes.
check-wheel:
	@tools/set_up.sh wheel
	$(VENV_PYTHON) -m tools.try_wheel --core-only
	$(VENV_PYTHON) -m tools.try_wheel $(if $(PYTHONS),--pythons $(PYTHONS)) \
		$(if $(TORCH),--torch $(TORCH))

# The tests in every environment that they have to pass in; it takes hours, goes on where it
# stopped, and writes benchmarks/results/environments.json. ENVIRONMENTS="tmpfs avx2" runs these.
check-environments: setup
	$(VENV_PYTHON) -m tools.check_environments $(ENVIRONMENTS) $(ARGS)

clean:
	rm -rf .venv .venv-vllm build dist
