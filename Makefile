# What people run here. `make` alone lists it. The steps live in scripts under e2e/, which also work by themselves.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PROFILE ?= release
CLUSTER ?= dev
# Every agent of which there is a recipe; CI tries two of them.
HARNESSES = $(notdir $(patsubst %/,%,$(dir $(wildcard harnesses/*/template.yaml))))
# Always the whole workspace: cargo picks the features of dependencies by what is selected, and would build them again and
# again for each selection.
TESTS = --workspace --lib --bins $$(e2e/test_targets.py)
export AGENTRUN_PROFILE := $(PROFILE)
AGENTRUN_CACHE ?= $(HOME)/.cache/agentrun
export AGENTRUN_BIN := $(AGENTRUN_CACHE)/cluster/bin
export AGENTRUN_IMAGES := $(CURDIR)/target/images.json
export AGENTRUN_HARNESSES ?= pi claude-code

.PHONY: help demo demo-down test bench approvals kills check cli packages programs cluster-programs image-inputs images cluster cluster-down install e2e test-harnesses

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Show a run from manifest to checked patch on a real one-node cluster (root, Debian)
	@e2e/demo.sh

demo-down: ## Remove the demo's cluster; what was built stays
	@e2e/cluster/down.sh demo
	@rm -rf target/demo

test: ## Everything that CI runs: format, lints, unit tests, chart, and the stories on a real node
	@e2e/test.sh

bench: packages programs cluster-programs images ## Run the benchmarks, print a table, write bench/results.json
	@e2e/bench.sh

approvals: ## 1,000 rounds of people at odds over approvals, on gateways that are killed (500 in `make test`)
	AGENTRUN_APPROVAL_ROUNDS=1000 cargo test --workspace --test gateway -- --nocapture approval_is_decided

kills: ## 100 kills of a gateway with fifty streams open, against the provider's own count (4 in `make test`)
	AGENTRUN_KILLS=100 cargo test --workspace --test gateway -- --nocapture killed_with_fifty

check: ## The inner loop: format, lints and unit tests, without a node
	@e2e/s3-server.sh >/dev/null
	e2e/examples.py
	docs/check.py
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo test $(TESTS)

cli: ## Build kubectl-agentrun, put it into ~/.cache/agentrun/bin and say so (PROFILE=dev for a quick build)
	cargo build --profile $(PROFILE) --workspace --bin kubectl-agentrun
	@install -D -m 755 $${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/kubectl-agentrun $(AGENTRUN_CACHE)/bin/kubectl-agentrun
	@install -m 755 cli/kubectl_complete-agentrun $(AGENTRUN_CACHE)/bin/
	@echo "kubectl-agentrun is in $(AGENTRUN_CACHE)/bin; with that folder in PATH, kubectl agentrun works"

packages: ## Install missing Debian packages (root)
	@e2e/cluster/packages.sh

programs: ## Build our static programs (PROFILE=dev for a quick debug build)
	cargo build --profile $(PROFILE) --workspace --bins

cluster-programs: ## Build Kubernetes and its helpers from their Go modules, once a machine
	@e2e/cluster/build.sh

image-inputs: programs ## Gather what the Containerfiles copy, for a docker build of your own
	@e2e/images.sh inputs

images: programs ## Build our images that changed, list them in target/images.json
	@e2e/images.sh

cluster: packages cluster-programs ## Start a cluster to work with (CLUSTER=dev), or reuse it
	@e2e/cluster/up.sh $(CLUSTER)

cluster-down: ## Remove it
	@e2e/cluster/down.sh $(CLUSTER)

install: cluster images ## Load our images into it and install the chart
	@e2e/install.sh $(CLUSTER)

e2e: install ## Run the stories on it and keep it (STORY=name for some of them)
	AGENTRUN_KUBECONFIG=$$(e2e/cluster/up.sh $(CLUSTER) 2>/dev/null) cargo test --workspace --test stories -- $(STORY)

test-harnesses: ## Try every command-line agent of harnesses/ on the node, unmodified, from npm
	$(MAKE) --no-print-directory install AGENTRUN_HARNESSES="$(HARNESSES)"
	AGENTRUN_KUBECONFIG=$$(e2e/cluster/up.sh $(CLUSTER) 2>/dev/null) AGENTRUN_HARNESSES="$(HARNESSES)" cargo test --workspace --test stories -- harnesses
