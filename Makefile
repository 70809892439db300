# The commands of the README. Every target first installs what the machine misses (see .ci/setup).
CARGO ?= cargo
DEMO_TABLE ?= pgbench_accounts
HEAPSCAN := target/release/heapscan

.PHONY: help setup demo test lint bench

help:
	@echo "make demo   scan a bundled real table of a PostgreSQL 18 cluster"
	@echo "make test   all tests"
	@echo "make lint   rustfmt, clippy, rustdoc; warnings are errors"
	@echo "make bench  micro benchmarks (criterion), then heapscan bench: IO methods and states, beside what the machine can do"
	@echo "make numa-vm  placement tests in virtual machines with several NUMA nodes"
	@echo "make loom   model check of the frame states"
	@echo "make asan   reads, pool and faults under AddressSanitizer (nightly toolchain)"

setup:
	@.ci/setup

demo: setup
	$(CARGO) build --release --locked --bin heapscan
	@cluster=$$($(HEAPSCAN) fixture pgbench-18) && \
	echo "+ heapscan ls $$cluster" && $(HEAPSCAN) ls "$$cluster" && \
	for method in auto sync worker io_uring tokio_uring; do \
	  echo "+ heapscan scan $$cluster $(DEMO_TABLE) --agg 'count(*),sum(abalance),sum(octet_length(filler))' --io-method $$method --stats text"; \
	  $(HEAPSCAN) scan "$$cluster" $(DEMO_TABLE) --agg 'count(*),sum(abalance),sum(octet_length(filler))' --io-method $$method --stats text || \
	    case $$method in *uring) echo "($$method cannot be used here; the others can)";; *) exit 1;; esac; \
	done

test: setup
	$(CARGO) test --workspace --locked

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# The comparison with all bars of the project; BENCH_ARGS=--quick for a minute's worth, --postgres PGBIN for a server beside.
BENCH_ARGS ?=
BENCH_OUTPUT ?= target/bench
bench: setup
	$(CARGO) bench --workspace --locked
	$(CARGO) build --release --locked --bin heapscan
	$(HEAPSCAN) bench --fio --output $(BENCH_OUTPUT) $(BENCH_ARGS)

.PHONY: loom asan
ASAN_FAULTS ?= seed=1,short=0.2,eintr=0.1,eagain=0.1
# The frame state word, pins, claims and completions under loom: all interleavings up to a bound.
loom: setup
	RUSTFLAGS="--cfg heapscan_loom" CARGO_TARGET_DIR=target/loom $(CARGO) test -p heapscan --no-default-features \
	  --test pool_loom --locked

# The reads, the pool, the streams and whole scans with all fault plans under AddressSanitizer. Needs a nightly toolchain.
# Then every table of the corpus, with every method, under faults.
# Leaks are not looked for: the tests forget pages and streams on purpose.
asan: setup
	HEAPSCAN_SANITIZER=1 ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=target/asan $(CARGO) +nightly test --locked \
	  --target x86_64-unknown-linux-gnu -p heapscan-io -p heapscan --lib --test reads --test rings --test workers \
	  --test pool_frames --test pool_stream --test fault_matrix --test generated -- --test-threads 2
	HEAPSCAN_FAULT=$(ASAN_FAULTS) HEAPSCAN_SANITIZER=1 ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS="-Zsanitizer=address" \
	  CARGO_TARGET_DIR=target/asan $(CARGO) +nightly test --locked --target x86_64-unknown-linux-gnu -p heapscan \
	  --test matrix -- --test-threads 2

.PHONY: numa-vm
# Placement on real kernels with several nodes; installs QEMU when run as root. TOPOLOGIES chooses some.
TOPOLOGIES ?= two four cxl memless gap
numa-vm: setup
	CARGO="$(CARGO)" placement/tests/numa-vm/run $(TOPOLOGIES)
