# Stoker's targets. `make demo` shows the loop, `make test` proves it.
# GROUP chooses an end-to-end group; without it all are run.
GROUP  ?=
DEMO   ?= --seed 1 --listen 127.0.0.1:0
GOTEST ?= go test
TOOLS  := go tool -modfile=internal/tools/go.mod
# The discovery of clouds' targets is most of what promtool is made of; no rule needs it.
PROMTOOL := GOFLAGS="$(GOFLAGS) -tags=remove_all_sd" $(TOOLS) promtool

.PHONY: demo build test unit sanitize e2e e2e-programs console storm lint fmt generate bench bench-collector vuln ci demo-report clean

demo: ## eight simulated nodes, seven things that happen, about two minutes
	@go build -o bin/stoker ./cmd/stoker
	@bin/stoker demo $(DEMO)

build: ## both programs into bin/
	CGO_ENABLED=0 go build -trimpath -o bin/stoker ./cmd/stoker
	go build -trimpath -o bin/stoker-collector ./cmd/stoker-collector

test: unit sanitize e2e ## everything that needs Go and gcc only

unit: ## all packages, with the race detector
	@$(PROMTOOL) --version >/dev/null # built before the clock of a test runs
	# Many packages wait for something: four at once keep two cores busy. The race detector
	# would wait a second at the end of each for goroutines, of which there are none by then.
	GORACE="atexit_sleep_ms=50 $(GORACE)" $(GOTEST) -race -p 4 -timeout 20m ./...
	GOTEST="$(GOTEST)" .ci/whole # and what is too long for the race detector
	CGO_ENABLED=0 $(GOTEST) -run WithoutCgo ./cmd/stoker-collector

sanitize: ## the binding of DCGM, in C and in Go, under the checks of addresses and leaks; needs gcc
	# What was freed is kept for a while, to find who still uses it: little of it, so that memory
	# is constant. The search for leaks at the end breaks over Go's threads and the many copies of
	# the fake; the program in C does it, and TestAnHourOfPolls counts.
	ASAN_OPTIONS=quarantine_size_mb=8:detect_leaks=0 $(GOTEST) -asan -timeout 20m ./collector/dcgm

# The control plane is built from Go modules, once; Go's cache and the programs'
# folder keep it.
e2e-programs: ## the real control plane: etcd, Kubernetes, kwok, Alertmanager
	cd internal/e2e && go run ./cmd/programs

e2e: e2e-programs ## against the real control plane on loopback; GROUP=spine for one group
	cd internal/e2e && $(GOTEST) -count=1 -p 1 -timeout 40m $(if $(GROUP),./$(GROUP)/...,./...)

console: ## the console in Debian's chromium, which root gets by the way; pictures in bin/console
	@command -v chromium >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core; }
	cd internal/e2e && $(GOTEST) -tags browser -count=1 -timeout 10m ./console

storm: e2e-programs ## ten minutes of 50,000 alerts about 50 nodes; what CI does in half a minute
	cd internal/e2e && STOKER_STORM=10m $(GOTEST) -count=1 -v -timeout 20m -run TestStorm ./neighbours

lint: ## formatting, vet, linters, rule files
	$(TOOLS) golangci-lint run --allow-parallel-runners ./...
	cd internal/e2e && go tool -modfile=../tools/go.mod golangci-lint run --allow-parallel-runners ./...
	go vet ./...

fmt:
	$(TOOLS) golangci-lint fmt ./...

generate: ## everything that is generated and committed
	go generate ./...

bench:
	go test -run '^$$' -bench . -benchmem ./...

bench-collector: ## what the node agent costs, over the fake library and eight GPUs
	go test -run '^$$' -bench 'Program' -benchtime 1x ./cmd/stoker-collector
	go test -run '^$$' -bench . -benchmem ./collector ./collector/dcgm

vuln: ## known vulnerabilities; needs the vulnerability database
	$(TOOLS) govulncheck ./...

ci: ## what CI runs, with a table of minutes per group
	@.ci/groups lint unit sanitize e2e console demo-report

demo-report: ## the demo at full speed, and what its report says
	@go build -o bin/stoker ./cmd/stoker
	bin/stoker demo --speed max --report bin/demo.json

clean:
	rm -rf bin
