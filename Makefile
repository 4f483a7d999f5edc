# What people type. Everything that decides something is in `cargo xtask`; this file only names it.

PREFIX  ?= /usr/local
DESTDIR ?=
# Arguments for `make bench`, as in: make bench ARGS=--quick
ARGS    ?=

TARGET  := $(or $(CARGO_TARGET_DIR),target)
NETRAM  := $(TARGET)/release/netram
LAB     := $(TARGET)/release/netram-lab
BIN     := $(DESTDIR)$(PREFIX)/bin
SHARE   := $(DESTDIR)$(PREFIX)/share
UNITS   := $(DESTDIR)$(PREFIX)/lib/systemd/system
SERVICES   := netram-lender.service netram-shared@.service netram-volume@.service netram-volume-server@.service
SYSUSERS   := $(DESTDIR)$(PREFIX)/lib/sysusers.d

LIBRVM  := packaging/librvm/install.sh
# `netram-lab pagesim` links programs to this library, or has an emulator load it, from ../lib/netram beside its own directory.
TRACER  := $(TARGET)/release/libnetram_tracer.so
# What `netram run` has programs load. It looks for it there, too.
PRELOAD  := $(TARGET)/release/libnetram_preload.so
# SQLite's extension, which programs load by its path, as libnetram_sqlite.
SQLITE  := $(TARGET)/release/libnetram_sqlite_extension.so
OWN     := $(DESTDIR)$(PREFIX)/lib/netram
# The loader finds a library once its cache knows it; a stage, or an install without root, is not in the cache.
LDCONFIG := @if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then ldconfig; fi

.PHONY: help demo drawing test users guest csi-test fuzz miri soak bench build lab wheel install install-lab uninstall clean need-cargo
.DEFAULT_GOAL := help

help:
	@echo "make demo              build netram and watch commits survive a killed lender"
	@echo "make drawing           several processes edit one drawing in shared memory; one after the other is killed, and the picture stays"
	@echo "make test              install what the tests need, then check everything"
	@echo "make users [SECONDS=]  file systems and databases on a volume that is killed under them (default five minutes)"
	@echo "make guest             a volume attached by the kernel's ublk, in a guest under QEMU that is cut off"
	@echo "make csi-test          Kubernetes' own test of storage drivers, on the volumes of netram-csi; needs root and Go"
	@echo "make fuzz [SECONDS=]   every parser and machine, fed by libFuzzer (default ten minutes)"
	@echo "make miri              tests of the formats, in Miri; needs a nightly toolchain that has it"
	@echo "make soak [SECONDS=]   all long tests one after the other: simulator, faults, users and others (default an hour)"
	@echo "make bench [ARGS=]     measure every figure beside its floor (ARGS=--quick: under two minutes)"
	@echo "make build             the program, the C library, and the libraries that netram run and SQLite load"
	@echo "make lab               the laboratory: netram-lab, and the library that its pagesim loads"
	@echo "make install [PREFIX=] binary, C library, man pages, completions, systemd unit (default $(PREFIX))"
	@echo "make install-lab       the laboratory, below the same prefix"
	@echo "make uninstall         remove what install put there"
	@echo "make wheel             the Python package, as $(TARGET)/wheels/netram-*.whl"
	@echo "make clean             remove what was built"

# Without what measures, and without what makes a release as fast as it can be: to be seen soon after a clone.
demo: need-cargo
	cargo build --profile demo -p netram-lab --no-default-features
	$(TARGET)/demo/netram-lab demo

drawing: need-cargo
	cargo run --release -p netram-drawing -- demo --stay

test: need-cargo
	scripts/test-deps.sh
	cargo xtask check

users: need-cargo
	scripts/users.sh $(SECONDS)

guest: need-cargo
	scripts/guest.sh

csi-test: need-cargo
	scripts/csi-test.sh

fuzz: need-cargo
	scripts/fuzz.sh $(SECONDS)

miri: need-cargo
	scripts/miri.sh

soak: need-cargo
	scripts/test-deps.sh
	scripts/soak.sh $(SECONDS)

bench: lab
	$(LAB) bench figures $(ARGS)

build: need-cargo
	cargo build --release -p netram-cli -p librvm -p netram-preload -p netram-sqlite-extension
	$(LIBRVM) names $(TARGET)/release

lab: need-cargo
	cargo build --release -p netram-lab -p netram-tracer

wheel: need-cargo
	scripts/wheel.sh

# An install as root after a build by a user must not build anew: root may have no cargo.
install:
	@test -x $(NETRAM) -a -e $(TARGET)/release/librvm.so -a -e $(TARGET)/release/librvm-names -a -e $(PRELOAD) -a -e $(SQLITE) || $(MAKE) --no-print-directory build
	install -D -m 755 $(NETRAM) $(BIN)/netram
	install -D -m 644 $(PRELOAD) $(OWN)/libnetram_preload.so
	install -D -m 644 $(SQLITE) $(OWN)/libnetram_sqlite.so
	install -d $(SHARE)/man/man1
	$(NETRAM) man $(SHARE)/man/man1
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(NETRAM) completions bash > $(SHARE)/bash-completion/completions/netram
	$(NETRAM) completions zsh > $(SHARE)/zsh/site-functions/_netram
	$(NETRAM) completions fish > $(SHARE)/fish/vendor_completions.d/netram.fish
	install -d $(UNITS)
	for unit in $(SERVICES); do \
		sed 's|/usr/local/bin|$(PREFIX)/bin|' packaging/$$unit > $(UNITS)/$$unit && chmod 644 $(UNITS)/$$unit || exit 1; \
	done
	install -D -m 644 packaging/netram.sysusers $(SYSUSERS)/netram.conf
	$(LIBRVM) install $(TARGET)/release $(PREFIX) "$(DESTDIR)"
	$(LDCONFIG)

# The laboratory: measurements, the demonstration, and the study of paging policies.
install-lab:
	@test -x $(LAB) -a -e $(TRACER) || $(MAKE) --no-print-directory lab
	install -D -m 755 $(LAB) $(BIN)/netram-lab
	install -D -m 644 $(TRACER) $(OWN)/libnetram_tracer.so

uninstall:
	rm -f $(BIN)/netram-lab $(OWN)/libnetram_tracer.so $(OWN)/libnetram_preload.so $(OWN)/libnetram_sqlite.so
	rm -f $(BIN)/netram $(SHARE)/man/man1/netram.1 $(SHARE)/man/man1/netram-*.1
	rm -f $(SHARE)/bash-completion/completions/netram $(SHARE)/zsh/site-functions/_netram
	rm -f $(SHARE)/fish/vendor_completions.d/netram.fish $(addprefix $(UNITS)/,$(SERVICES)) $(SYSUSERS)/netram.conf
	$(LIBRVM) uninstall $(TARGET)/release $(PREFIX) "$(DESTDIR)"
	$(LDCONFIG)

clean: need-cargo
	cargo clean

need-cargo:
	@command -v cargo >/dev/null || { \
		echo "cargo is missing. Install Rust with rustup: see https://rustup.rs" >&2; \
		echo "(Debian's own rustc is too old: netram needs the version in Cargo.toml, rust-version.)" >&2; \
		exit 1; }
	@command -v cc >/dev/null || scripts/test-deps.sh
