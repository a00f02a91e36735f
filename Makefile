# `make demo` and `make test` are what a new user runs; the rest is for people who work on Cairn.
.PHONY: demo test check bench torture guest recipes package package-check package-trial package-compare sim mutants deny fuzz \
        miri clean

demo:
	@tools/setup demo && tools/demo

test:
	@tools/test

# While one works: Rust only, at most 90 s once built.
check:
	@tools/check

# Beside the peers, changes under load, virtual disks: 35 minutes, or 3 with QUICK=1, or ONLY=attach, jobs, or pools.
# Needs root. Writes out/bench, the README's table and that of docs/bench.
bench:
	@YES=1 tools/setup bench && tools/bench

# A file system and fsx on everything together, then kills and power cuts; docs/testing.md has a short one. Needs root.
torture:
	@tools/setup torture && tools/torture

# Cairn on Debian's own kernel in an emulated machine, with the kernel's NBD client.
guest:
	@tools/setup guest && tools/guest && tools/nbd-tester

# Every page of docs/recipes, with the programs that it needs. Needs root.
recipes:
	@tools/setup recipes && RECIPES=all cargo test --locked --package cairn --test recipes

# Debian packages and a static program, into out/package. STATIC=0 leaves the static program out.
package:
	@tools/setup package && tools/package

# Builds twice, in two directories, and compares the bytes.
package-check:
	@tools/setup package && tools/package-check

# The packages in a fresh Debian with systemd: installation, the demo, an upgrade under fio, removal. Needs root.
package-trial:
	@tools/setup package-trial && tools/package-trial

# The static program beside the one of the package: speed, and the lookup of host names. Needs root; 4 minutes.
package-compare:
	@tools/setup package-compare && tools/package-compare

# The seeded simulator: make sim N=5000, or SEED=0x... make sim N=1
N ?= 1000
sim:
	@tools/sim $(N)

# Every seeded bug must be found: prints how many seeds each one took.
mutants:
	@tools/mutants

deny:
	@command -v cargo-deny >/dev/null || cargo install --locked --quiet cargo-deny
	cargo deny check licenses bans sources

# Every fuzz target for SECONDS each; needs nightly and cargo-fuzz.
SECONDS ?= 30
fuzz:
	@for target in $$(cargo fuzz list); do cargo +nightly fuzz run $$target -- -max_total_time=$(SECONDS) || exit 1; done

# The files with unsafe code that Miri can run: the slots of the engine, the buffer pool, the wakers.
miri:
	@rustup component add --toolchain nightly miri rust-src 2>/dev/null || true
	MIRIFLAGS=-Zmiri-strict-provenance cargo +nightly miri test --package cairn-engine --lib
	MIRIFLAGS=-Zmiri-strict-provenance cargo +nightly miri test --package cairn-block --lib -- buf range_lock

clean:
	cargo clean
	rm -rf out
