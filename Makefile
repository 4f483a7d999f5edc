# What people type. Everything that decides something is in `cargo xtask`; this file only names it.

PREFIX  ?= /usr/local
DESTDIR ?=
# Arguments for `make bench`, as in: make bench ARGS=--quick
ARGS    ?=

TARGET  := $(or $(CARGO_TARGET_DIR),target)
NETRAM  := $(TARGET)/release/netram
LENDER  := $(TARGET)/release/netram-lender
LAB     := $(TARGET)/release/netram-lab
BIN     := $(DESTDIR)$(PREFIX)/bin
SHARE   := $(DESTDIR)$(PREFIX)/share
UNITS   := $(DESTDIR)$(PREFIX)/lib/systemd/system
# Whatever unit stands there is installed.
SERVICES   := $(notdir $(wildcard packaging/*.service packaging/*.slice packaging/*.socket packaging/*.target packaging/*.timer))
SYSUSERS   := $(DESTDIR)$(PREFIX)/lib/sysusers.d
# Files for other programs: rules and dashboards of monitoring, manifests.
EXAMPLES   := $(wildcard packaging/prometheus packaging/grafana packaging/kubernetes)

# What installs leaves out: tables of lines, three quarters of each file. Names of functions stay, for reports of a panic.
STRIP   ?= $(shell command -v strip)
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

.PHONY: help demo drawing test users guest csi-test ansible-test grafana fuzz miri soak bench build lab csi wheel wheel-manylinux deb packages-test image crates release install install-lab uninstall clean need-cargo
.DEFAULT_GOAL := help

help:
	@echo "make demo              build netram and watch commits survive a killed lender"
	@echo "make drawing           several processes edit one drawing in shared memory; one after the other is killed, and the picture stays"
	@echo "make test              install what the tests need, then check everything"
	@echo "make users [SECONDS=]  file systems and databases on a volume that is killed under them (default five minutes)"
	@echo "make guest             a volume attached by the kernel's ublk, in a guest under QEMU that is cut off"
	@echo "make csi-test          Kubernetes' own test of storage drivers, on the volumes of netram-csi; needs root and Go"
	@echo "make ansible-test      the Ansible role, on three lenders and a client in namespaces; needs root, debootstrap and make deb"
	@echo "make grafana           the Grafana dashboard, packaging/grafana/netram.json, from its script; needs Python and Go"
	@echo "make fuzz [SECONDS=]   every parser and machine, fed by libFuzzer (default ten minutes)"
	@echo "make miri              tests of the formats, in Miri; needs a nightly toolchain that has it"
	@echo "make soak [SECONDS=]   all long tests one after the other: simulator, faults, users and others (default an hour)"
	@echo "make bench [ARGS=]     measure every figure beside its floor (ARGS=--quick: under two minutes)"
	@echo "make build             the program, the C library, and the libraries that netram run and SQLite load"
	@echo "make lab               the laboratory: netram-lab, and the library that its pagesim loads"
	@echo "make install [PREFIX=] binary, C library, man pages, completions, systemd units (default $(PREFIX))"
	@echo "make install-lab       the laboratory, below the same prefix"
	@echo "make uninstall         remove what install put there"
	@echo "make wheel             the Python package, as $(TARGET)/wheels/netram-*.whl"
	@echo "make deb               Debian packages of everything, as $(TARGET)/debian/*.deb; needs debhelper"
	@echo "make packages-test     install, use, upgrade and purge them in a Debian of their own; needs root and debootstrap"
	@echo "make wheel-manylinux   the Python package for every Linux with glibc 2.17, judged by auditwheel, and tried"
	@echo "make image             container images of netram-lender and netram-csi, as $(TARGET)/images/*.oci.tar"
	@echo "make crates            crates as they would be published, by a trial that sends nothing; bill of materials"
	@echo "make release           all of these with checksums, in $(TARGET)/release-files"
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

# It says why it was skipped, and is no failure then.
ansible-test:
	scripts/ansible-test.sh || test $$? = 3

grafana:
	scripts/grafana.sh

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

wheel-manylinux: build
	scripts/wheel-manylinux.sh

csi: need-cargo
	cargo build --release -p netram-csi

deb: build lab csi wheel
	scripts/deb.sh

packages-test: deb
	scripts/packages-test.sh

image: build csi
	scripts/image.sh netram-lender
	scripts/image.sh netram-csi

# Neither compiles: a checkout that passes its tests has done that. The second asks the registry.
crates: need-cargo
	cargo xtask package
	cargo publish --workspace --dry-run --no-verify --allow-dirty --locked --quiet

release: need-cargo
	scripts/release.sh

# An install as root after a build by a user must not build anew: root may have no cargo.
install:
	@test -x $(NETRAM) -a -x $(LENDER) -a -e $(TARGET)/release/librvm.so -a -e $(TARGET)/release/librvm-names -a -e $(PRELOAD) -a -e $(SQLITE) || $(MAKE) --no-print-directory build
	install -D -m 755 $(NETRAM) $(BIN)/netram
	install -D -m 755 $(LENDER) $(BIN)/netram-lender
	install -D -m 644 $(PRELOAD) $(OWN)/libnetram_preload.so
	install -D -m 644 $(SQLITE) $(OWN)/libnetram_sqlite.so
	$(if $(STRIP),$(STRIP) --strip-debug $(BIN)/netram $(BIN)/netram-lender $(OWN)/libnetram_preload.so $(OWN)/libnetram_sqlite.so)
	install -d $(SHARE)/man/man1 $(SHARE)/man/man8
	$(NETRAM) man $(SHARE)/man/man1
	$(LENDER) man $(SHARE)/man/man8
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	for program in netram netram-lender; do \
		completions() { $(TARGET)/release/$$program completions $$1; }; \
		completions bash > $(SHARE)/bash-completion/completions/$$program || exit 1; \
		completions zsh > $(SHARE)/zsh/site-functions/_$$program || exit 1; \
		completions fish > $(SHARE)/fish/vendor_completions.d/$$program.fish || exit 1; \
	done
	install -d $(UNITS)
	for unit in $(SERVICES); do \
		sed 's|/usr/local/bin|$(PREFIX)/bin|' packaging/$$unit > $(UNITS)/$$unit && chmod 644 $(UNITS)/$$unit || exit 1; \
	done
	install -D -m 644 packaging/netram.sysusers $(SYSUSERS)/netram.conf
	for file in $(foreach directory,$(EXAMPLES),$(filter-out %.test.yml %.py,$(wildcard $(directory)/*.*))); do \
		install -D -m 644 $$file $(SHARE)/netram/$${file#packaging/} || exit 1; \
	done
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
	rm -f $(BIN)/netram-lender $(SHARE)/man/man8/netram-lender.8 $(SHARE)/man/man8/netram-lender-*.8
	rm -f $(addprefix $(SHARE)/bash-completion/completions/,netram netram-lender)
	rm -f $(addprefix $(SHARE)/zsh/site-functions/,_netram _netram-lender)
	rm -f $(addprefix $(SHARE)/fish/vendor_completions.d/,netram.fish netram-lender.fish) $(addprefix $(UNITS)/,$(SERVICES)) $(SYSUSERS)/netram.conf
	rm -rf $(addprefix $(SHARE)/netram/,$(notdir $(EXAMPLES)))
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
