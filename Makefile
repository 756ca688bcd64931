# All tasks of this repository, for developers and CI. `make help` lists them.
# Needs Go, git, make, a C compiler (for the race detector) and the Go module
# proxy; tools, control plane and kubectl are built from source and cached by Go.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

# Only these two targets work without Go.
ifneq ($(filter-out help clean,$(or $(MAKECMDGOALS),help)),)
ifeq ($(shell command -v go),)
$(error Go is not in the PATH: install Go 1.26 (https://go.dev/dl/) and add its directory bin to the PATH)
endif
endif

# One set of build flags for programs, tests and tools, so that the build cache
# holds every package once. Only the race detector needs cgo.
export CGO_ENABLED := 0
# Only released programs are built with a profile (cmd/broker/default.pgo): it doubles what a test must compile.
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -buildvcs=false -pgo=off)

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/hawser-io/hawser/internal/telemetry.version=$(VERSION)
TOOLS := buf crane golangci-lint grpcurl helm protoc-gen-go protoc-gen-go-grpc
tool = go tool -modfile=$(CURDIR)/tools/$(1)/go.mod $(1)
# Builds a tool and reports the progress; the first build of some takes minutes.
ready = .ci/progress "building $(1)" go tool -modfile=$(CURDIR)/tools/$(1)/go.mod -n $(1) >/dev/null

# All packages except those whose tests need a control plane, programs of Debian, Helm, built
# programs or the results of other stages. The simulator plays for a fixed time, so it begins
# first and runs beside the others.
UNIT = $$(go list ./test/sim ./... | grep -Ev '/internal/local/(thirdparty|postgres)$$|/store/postgres$$|/test/(alerts|charts|e2e|docs|attack|interop|traceability/passed)(/|$$)|/test/histories$$')
# Runs go test, and keeps its events for the stage guarantees. With AGAIN=1 failed tests
# run once more, alone. $(1) is part of the name of the events' file.
gotest = go run ./tools/testlog/gotest .cache/tests/$@$(1).json
# The modules of this repository without those of the tools and without test/ocm. Only a build of
# OCM's programs fetches the 130 more modules of test/ocm and compiles OCM, so it is checked there.
MODULES := . test/controlplane test/interop/sdkgo tools/release
CONTROLPLANE := test/controlplane/build.sh

# The released programs and platforms. All packed files have the time of the commit.
PROGRAMS := hawser-broker hawser-hub-source hawser-agent hawser
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
# programs builds $(2) into $(1); platforms builds them for each of $(1).
programs = mkdir -p $(1); for p in $(2); do \
	.ci/progress "building $$p" go build -v -pgo=auto -ldflags '$(LDFLAGS)' -o $(1)/$$p ./cmd/$${p\#hawser-}; echo $(1)/$$p; \
done
platforms = for platform in $(1); do \
	export GOOS=$${platform%/*} GOARCH=$${platform\#*/} GOAMD64=v1 GOARM64=v8.0; \
	$(call programs,bin/$${platform//\//_},$(2)); \
done
comma := ,
space := $(subst ,, )
release = go run -C tools/release . -root $(CURDIR) -version $(VERSION) -time $(SOURCE_DATE_EPOCH) -platforms $(subst $(space),$(comma),$(strip $(1)))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: tools
tools: ## build the pinned tools into Go's build cache (each is run by `go tool`)
	@for t in $(TOOLS); do \
		$(call ready,$$t); echo "$$t: ready"; \
	done

.PHONY: grpcurl
grpcurl: ## build grpcurl, with which README talks to the broker, into bin/
	@mkdir -p bin
	@.ci/progress 'building grpcurl' go build -v -modfile=tools/grpcurl/go.mod -o bin/grpcurl github.com/fullstorydev/grpcurl/cmd/grpcurl

.PHONY: generate
generate: ## write generated code, the proto image, the CRDs and docs/reference
	@.ci/generate .

.PHONY: build
build: ## build the programs into bin/
	@$(call programs,bin,$(PROGRAMS))

.PHONY: images
images: ## write OCI layouts of the programs for Linux on amd64 and arm64 into bin/images/, without a daemon
	@$(call platforms,linux/amd64 linux/arm64,$(PROGRAMS))
	@$(call release,linux/amd64 linux/arm64) images

.PHONY: push
push: ## push them, and tag them with the version: REGISTRY=registry.example.com/hawser
	@$(MAKE) --no-print-directory images
	@$(call ready,crane)
	@for p in $(PROGRAMS); do \
		$(call tool,crane) push bin/images/$$p $(or $(REGISTRY),$(error REGISTRY is not set: say where to, as in make push REGISTRY=registry.example.com/hawser))/$$p:$(VERSION); \
	done

.PHONY: release
release: images ## write archives, bills of materials, notes and digests into bin/release/
	@$(call platforms,$(filter-out linux/%,$(PLATFORMS)),hawser)
	@$(call release,$(PLATFORMS)) archives

.PHONY: lint
lint: fresh tidy lint-proto lint-go ## check generated files, modules, protos and Go code

.PHONY: fresh
fresh: ## fail if generated files differ from their sources
	@$(call ready,buf)
	@.ci/fresh

.PHONY: tidy
tidy: ## fail if go.mod or go.sum are not as `go mod tidy` leaves them
	@for m in $(MODULES); do \
		go -C $$m mod tidy -diff || { echo "hint: run go -C $$m mod tidy"; exit 1; }; \
		echo "$$m: $$(go -C $$m mod verify)"; \
	done

.PHONY: lint-proto
lint-proto: ## lint the protos and compare them with the committed image
	@$(call tool,buf) lint
	@$(call tool,buf) breaking --against proto/image.binpb

.PHONY: lint-go
lint-go: ## run golangci-lint on all Go modules
	@$(call ready,golangci-lint)
	@for m in $(MODULES); do \
		echo "$$m:"; (cd $$m && $(call tool,golangci-lint) run); \
	done

.PHONY: controlplane
controlplane: ## build the Kubernetes control plane and kubectl that tests and demo use
	@dir=$$($(CONTROLPLANE)); echo "$$dir"; \
		$(call gotest,-internal) -C=test/controlplane ./internal/...; \
		HAWSER_CONTROLPLANE_DIR=$$dir $(gotest) -C=test/controlplane -count=1 ./functional

.PHONY: debian
debian: ## fetch Mosquitto, Squid, Prometheus, Alertmanager, PostgreSQL and PgBouncer (Debian's packages, unpacked into the cache), try them, and test the alerts and the store in PostgreSQL
	@for p in mosquitto squid prometheus prometheus-alertmanager postgresql pgbouncer; do internal/local/thirdparty/fetch.sh $$p; done
	@$(gotest) -count=1 -skip='^TestMigrate_Killed$$' ./internal/local/thirdparty ./internal/local/postgres ./internal/broker/store/postgres ./test/alerts

.PHONY: histories
# A run does not repeat, so a violation is never run again.
histories: export AGAIN := 0
histories: ## run clients against three brokers and PostgreSQL with faults for FOR (default 1m), and judge what they saw
	@internal/local/thirdparty/fetch.sh postgresql
	@$(gotest) -count=1 -timeout=0 ./test/histories -for=$(or $(FOR),1m)

.PHONY: histories-long
histories-long: ## the same for five minutes
	@$(MAKE) --no-print-directory histories FOR=5m

.PHONY: migrate-long
migrate-long: ## migrate a store of WORKS (default 100000) works to PostgreSQL and back, and kill the command on its way
	@internal/local/thirdparty/fetch.sh postgresql
	@WORKS=$(WORKS) go test -count=1 -timeout=30m -v -run='^TestMigrate_Killed$$' ./internal/broker/store/postgres

.PHONY: unit
unit: ## run the tests that need no control plane and no program of Debian
	@$(gotest) $(UNIT)
	@$(call gotest,-release) -C=tools/release

.PHONY: race
# Without the seeds of fuzz targets, measurements, long tests of one goroutine, and tests that mostly start
# other processes (scripts of the CLI, calls of go test); each property has fewer cases. The stage unit runs
# all of them. It also vets the packages, so race does not: go test would vet each of them, with its
# dependencies, once more for the race detector.
race: ## the same under the race detector, without the tests that cannot have races
	@CGO_ENABLED=1 $(gotest) -race -short -vet=off -skip='Scripts$$|^TestAgain_|^TestPrint_ReportsOutputOfGoTest$$|^Fuzz|_WorstCallOfEachFunction$$|^TestScript_IsWhole$$|^TestPages_|^TestImports_|^TestLimitSize_|_Cost(Of|Grows)|_MemoryPerTrackedObject$$|^TestLinear_' $(UNIT)

.PHONY: sim
sim: ## play SEEDS (default 2000) seeds of each shape of the simulator; FIRST=n begins with seed n
	@SEEDS=$(or $(SEEDS),2000) FIRST=$(FIRST) go test -count=1 -timeout 0 -v -run '^(Test(MQTT|Join)?Seeds|TestSeeds_StatelessBroker)$$' ./test/sim

.PHONY: mutants
mutants: ## plant bugs in a copy; the simulator, or the test that a patch names, must find each; MUTANT=name tries one
	@.ci/mutants $(MUTANT)

.PHONY: interop
interop: ## run Hawser's programs against those of OCM's sdk-go, as processes of their own
	@mkdir -p bin/interop
	@go -C test/interop/sdkgo build -o $(CURDIR)/bin/interop/ ./...
	@$(gotest) -count=1 ./test/interop

.PHONY: klusterlet
klusterlet: ## build OCM's own programs, of a module of their own, into bin/: four minutes the first time
	@mkdir -p bin
	@go -C test/ocm mod tidy -diff
	@.ci/progress "building OCM's programs" go -C test/ocm build -v -ldflags '-s -w' -o $(CURDIR)/bin/klusterlet .
	@$(call ready,golangci-lint)
	@cd test/ocm && $(call tool,golangci-lint) run

.PHONY: charts
charts: ## lint the Helm charts and compare what they render with what kustomize does
	@$(call tool,helm) version --short
	@$(gotest) -count=1 ./test/charts

.PHONY: docs
docs: build ## run the commands that README and docs/ print
	@$(gotest) -count=1 ./test/docs

# Long end-to-end tests of parts that change seldom: packages, and some tests
# that e2e-mqtt-long and e2e-long have. Those with OCM's programs are in e2e-ocm.
# The stage lint has vetted all packages.
E2E_LONG := ./test/e2e/alerts ./test/e2e/install ./test/e2e/troubleshooting
E2E_OCM := ./test/e2e/ocm
e2e = $(call gotest,) -count=1 -vet=off -p=1 -parallel=8 -timeout=30m $(if $(RUN),-run='$(RUN)',$(2)) $(1)

.PHONY: e2e
e2e: build grpcurl ## run the end-to-end tests on real kube-apiservers; RUN=TestX runs one
	@$(call e2e,$$(go list ./test/e2e/... | grep -Ev '$(subst $(space),|,$(E2E_LONG:./%=/%$$) $(E2E_OCM:./%=/%$$))'),-skip='^(TestDemo_InterruptEndsItInOrder|TestDemo_LinesOfTheDocumentation|TestProxy_EndsIdleConnections|TestJoinedCluster_SurvivesOutages|TestJoinedCluster_ClockAhead|TestJoin_Scenarios|TestJoin_TwoHubs|TestJoin_HubReplaced|TestJoin_PrintedLines|TestJoin_InstallClusterReportsHow|TestJoin_ClusterNotOnHub|TestRights_AreLeast)$$')

.PHONY: e2e-long
e2e-long: build ## run those that take long: alerts, what is installed from nothing, staged faults, proxies, clusters that join; RUN=TestX runs one
	@$(call e2e,$(E2E_LONG) ./test/e2e/network ./test/e2e/join)

.PHONY: e2e-ocm
e2e-ocm: build klusterlet ## run OCM's own controllers and klusterlets with Hawser between them; RUN=TestX runs one
	@$(call e2e,$(E2E_OCM))

# Scenarios over MQTT, at Hawser's broker (mqtt) or through Mosquitto (mosquitto).
over = echo "over $(1):"; \
	TRANSPORT=$(1) $(call gotest,-$(1)) -count=1 -timeout=30m -run='$(2)' -p=1 $(or $(3),./test/e2e ./test/e2e/demo)

.PHONY: e2e-mqtt
e2e-mqtt: build ## run the main path over MQTT on real kube-apiservers, at our broker and through Mosquitto; RUN=TestX runs one
	@$(call over,mqtt,$(or $(RUN),^(TestLifecycle|TestMessagesTwice)$$),$(if $(RUN),,./test/e2e))
	@$(call over,mosquitto,$(or $(RUN),^(TestLifecycle|TestDroppedSpecs)$$),$(if $(RUN),,./test/e2e))

.PHONY: e2e-mqtt-long
e2e-mqtt-long: build ## run all end-to-end scenarios over MQTT, at our broker and through Mosquitto
	@$(call over,mqtt,.)
	@$(call over,mosquitto,.)

# Scenarios with three brokers over PostgreSQL.
replicas = echo "three brokers, over $(1):"; \
	BROKERS=3 TRANSPORT=$(1) $(call gotest,-$(1)) -count=1 -timeout=30m -run='$(or $(RUN),$(2))' ./test/e2e

.PHONY: e2e-replicas
e2e-replicas: build ## run the main path with three brokers over PostgreSQL, while brokers and the database are lost; RUN=TestX runs one
	@$(call replicas,grpc,^(TestLifecycle|TestKilledDuringUpdates|TestBrokersLost|TestDatabaseRestarted)$$)

.PHONY: e2e-replicas-long
e2e-replicas-long: build ## run all scenarios with three brokers over PostgreSQL
	@$(call replicas,grpc,.)
	@$(call replicas,mqtt,.)

.PHONY: hostile
hostile: build ## attack a broker beside a well-behaved fleet, a few seconds each; HOSTILE=10s measures for longer, RUN=TestX runs one
	@HOSTILE=$(HOSTILE) $(gotest) -count=1 -timeout=60m $(if $(RUN),-run='$(RUN)') ./test/attack

.PHONY: hostile-long
hostile-long: ## the same for a minute and more each
	@$(MAKE) --no-print-directory hostile HOSTILE=15s

.PHONY: guarantees
guarantees: ## fail unless the tests that docs/traceability names passed in the stages before
	@go test -count=1 ./test/traceability/...

.PHONY: test-fast
# The playing time of each shape of the simulator.
test-fast: export TIME := 15s
test-fast: unit ## the quick check while working: two minutes once built

.PHONY: test
# A test that fails once and passes alone is no failure here. It is printed at the end.
test: export AGAIN ?= 1
test: ## everything a change must pass; tests that fail are run once more, AGAIN=0 runs nothing again
	@rm -rf .cache/tests
	@MAKE='$(MAKE)' .ci/stages fresh tidy lint-proto lint-go controlplane debian histories unit race interop docs hostile e2e e2e-mqtt e2e-replicas guarantees

.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME (default 60s) each, going on where it ended
	@.ci/fuzz $(or $(FUZZTIME),60s) .cache/fuzz

# The readers of certificate requests, subjects, tokens and registration from joining or intermediate clients.
JOINING := ^(internal/cli FuzzApplication|internal/earliest .*|internal/identity Fuzz(FromCertificate|CheckAuthorities|ReadRequest)|internal/identity/token .*|internal/broker FuzzRegister|internal/broker/(denylist|tokens) .*|internal/hubsource/(clustercontroller|registration) .*|pkg/agent/registration .*|pkg/codec FuzzParseRegistration)$$

.PHONY: fuzz-joining
fuzz-joining: ## fuzz the readers of certificate requests, subjects, tokens and registration for FUZZTIME (default 1800s) in all
	@.ci/fuzz $(or $(FUZZTIME),1800s)/all .cache/fuzz '$(JOINING)'

.PHONY: fuzz-short
fuzz-short: ## fuzz every target for 1s, beginning with the committed corpus
	@.ci/fuzz 1s

.PHONY: soak
soak: build ## run a fleet under load and faults for SOAK (default 10m); SEED=n repeats a run
	@go run ./test/soak -for $(or $(SOAK),10m) -seed $(or $(SEED),0)

.PHONY: race-long
race-long: ## run the tests under the race detector ten times
	@CGO_ENABLED=1 go test -race -count=10 -timeout 60m $(UNIT)

.PHONY: reproducible
reproducible: ## make the release of the last commit in two folders, the second from nothing, and compare
	@MAKE='$(MAKE)' .ci/reproducible

.PHONY: test-all
test-all: export AGAIN := 0
test-all: ## make test, then the charts, long race, fuzz and soak runs, and the release twice
	@MAKE='$(MAKE)' .ci/stages test charts histories-long migrate-long e2e-long e2e-ocm e2e-mqtt-long e2e-replicas-long race-long fuzz hostile-long soak reproducible

.PHONY: demo
demo: ## a hub, two clusters and Hawser between them on this machine, until Ctrl-C
	@echo 'building hawser (a minute or two the first time) …'
	@mkdir -p bin
	@.ci/progress 'building hawser' go build -v -ldflags '$(LDFLAGS)' -o bin/hawser ./cmd/hawser
# In a separate job, so that Ctrl-C reaches the demo, which ends in order, and not make, which
# would report an error. With HAWSER_RUN_BY the demo's hints name commands of make.
	@set -m; HAWSER_RUN_BY=make bin/hawser demo $(ARGS) || exit $$?

.PHONY: bench
bench: build ## run the benchmarks; CHECK=1 fails where a target is missed; ONLY=core, works, mqtt, registration, replicas, postgres or fleet (beside commit ada167f) runs a part; ONLY=gate CHECK=1 is the gate of a change, beside BASE (HEAD~1)
	@echo "make bench$(if $(ONLY), ONLY=$(ONLY)) of $$(git describe --tags --always)$$(git diff --quiet HEAD -- . ':!docs/benchmarks' || echo -dirty) on $$(date +%F), $$(uname -sm), $$(nproc) processors"
	@go run ./test/bench $(if $(CHECK),--check) $(if $(ONLY),--only $(ONLY)) $(if $(BASE),--base $(BASE))
	@$(if $(ONLY),true,go test -run '^$$' -bench MissesTheAnswer -benchtime 50x ./internal/hubsource/core)
	@$(if $(ONLY),true,mkdir -p bin/interop)
	@$(if $(ONLY),true,go -C test/interop/sdkgo build -o $(CURDIR)/bin/interop/ ./...)
	@$(if $(ONLY),true,go test -run '^$$' -bench . -benchtime 1x ./test/interop)
	@$(if $(ONLY),true,HOSTILE=1s go test -count=1 -timeout 60m -v ./test/attack $(if $(CHECK),,|| true))

.PHONY: pgo
pgo: ## measure the broker under load, and write the profile that its build uses (cmd/broker/default.pgo): four minutes
	@LDFLAGS='$(LDFLAGS)' .ci/pgo

.PHONY: bench-plots
bench-plots: ## draw the pictures of docs/benchmarks.md from the outputs of make bench in docs/benchmarks
	@go run ./test/bench/plots docs/benchmarks

.PHONY: clean
clean: ## remove what was built here (not Go's caches)
	rm -rf bin .cache .hawser-demo
