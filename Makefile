# Needs: make, and a Python 3.11, 3.12 or 3.13 with venv and pip. Everything else is installed into .venv.
# Choose the interpreter with `make setup PYTHON=/path/to/python`.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
FIRST_SUPPORTED = $(shell for p in python3.13 python3.12 python3.11 python3; do \
	"$$p" -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
# Looked for once, and only when .venv is to be made.
PYTHON ?= $(eval PYTHON := $(FIRST_SUPPORTED))$(PYTHON)

BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && "$(PYTHON)" -c '$(SUPPORTED)' || { \
		echo "Outlive needs Python 3.11, 3.12 or 3.13; found: $(or $(PYTHON),none). Try: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "$(PYTHON) has no venv or ensurepip. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -c '$(SUPPORTED)' 2>/dev/null || "$(PYTHON)" -m venv --clear .venv
	@echo "Installing Outlive, its extras and the tools for development into .venv"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[all,dev]' -c constraints.txt
	@touch $@

.PHONY: setup
setup: $(STAMP) ## Make .venv with Outlive, every extra and the tools for development

# Programs of Debian's that some tests need, as command:package. Where they cannot be had, those tests are skipped
# and say so.
DEBIAN := chromium:chromium nginx:nginx pgbouncer:pgbouncer faketime:faketime

.PHONY: debian
debian:
	@missing="$(strip $(foreach each,$(DEBIAN),$(shell command -v $(firstword $(subst :, ,$(each))) >/dev/null || echo $(lastword $(subst :, ,$(each))))))"; \
	test -z "$$missing" || { echo "Installing $$missing" && command -v apt-get >/dev/null && test "$$(id -u)" = 0 \
		&& apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install $$missing >/dev/null; } \
	|| echo "Not installed: $$missing. It takes Debian or Ubuntu, and root."

NODE := $(addsuffix /node_modules/.installed,tests/client tests/langgraph_server/js)

$(NODE): %/node_modules/.installed: %/package.json
	@command -v npm >/dev/null || { echo "Not there: npm. The tests of clients in JavaScript need Node 20 or newer."; exit 0; }; \
	echo "Installing the tools of JavaScript tests into $(@D)"; \
	npm install --prefix $* --no-package-lock --no-audit --no-fund --ignore-scripts --silent && touch $@ \
	|| echo "Not installed: what $< names."

# Older versions of LangGraph's SDK, each in a directory of its own; what they need is in .venv.
OLDER_SDKS := $(foreach version,0.1.70 0.2.9 0.3.3,.venv/older-sdks/$(version)/.installed)

$(OLDER_SDKS): .venv/older-sdks/%/.installed: | $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --upgrade --target $(@D) langgraph-sdk==$* \
	&& touch $@ || echo "Not installed: langgraph-sdk $*. Its tests are skipped."

.PHONY: demo
demo: $(STAMP) ## Show what leaving clients, killed and frozen workers leave behind (BREAK=... breaks a part)
	$(BIN)/python -m demo.run --break "$(BREAK)" $(ARGS)

.PHONY: lint
lint: $(STAMP) ## Check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: test
test: lint debian $(NODE) $(OLDER_SDKS) ## Lint, then run every test (ARGS=... goes to pytest)
	$(BIN)/python -m pytest $(ARGS)

SEEDS ?= 2000

.PHONY: simulate
simulate: $(STAMP) ## Simulate a fleet's bad days: SEEDS=N of them (ARGS=... goes to the simulation)
	$(BIN)/python -m outlive.testing.simulate --seeds $(SEEDS) $(ARGS)

.PHONY: bench
bench: $(STAMP) ## Measure on this machine (ARGS=... goes to the benchmark)
	$(BIN)/python -m bench.run $(ARGS)

.PHONY: serve
serve: $(STAMP) ## Serve the demo's agents and their provider (ARGS=... goes to outlive serve)
	$(BIN)/python -m demo.serve $(ARGS)

.PHONY: clean
clean: ## Remove .venv, caches and build output
	rm -rf .venv build dist $(dir $(NODE)) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
