# The commands of the README. Every target first installs what the machine misses (see .ci/setup).
CARGO ?= cargo
DEMO_TABLE ?= pgbench_accounts
HEAPSCAN := target/release/heapscan

.PHONY: help setup demo test lint bench

help:
	@echo "make demo   scan a bundled real table of a PostgreSQL 18 cluster"
	@echo "make test   all tests"
	@echo "make lint   rustfmt, clippy, rustdoc; warnings are errors"
	@echo "make bench  micro benchmarks (criterion)"

setup:
	@.ci/setup

demo: setup
	$(CARGO) build --release --locked --bin heapscan
	@cluster=$$($(HEAPSCAN) fixture pgbench) && \
	echo "+ heapscan ls $$cluster" && $(HEAPSCAN) ls "$$cluster" && \
	for method in auto sync worker; do \
	  echo "+ heapscan scan $$cluster $(DEMO_TABLE) --agg 'count(*),sum(abalance),sum(octet_length(filler))' --io-method $$method --stats text"; \
	  $(HEAPSCAN) scan "$$cluster" $(DEMO_TABLE) --agg 'count(*),sum(abalance),sum(octet_length(filler))' --io-method $$method --stats text || exit 1; \
	done

test: setup
	$(CARGO) test --workspace --locked

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

bench: setup
	$(CARGO) bench --workspace --locked
