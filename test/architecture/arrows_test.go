package architecture

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// rows is the order of the packages. A package imports only packages of its own row and of the rows below. A
// pattern with /... at its end also matches all packages below it. The longest matching pattern decides.
var rows = [][]string{
	{"cmd/..."},
	{"internal/cli", "internal/local/demo", "internal/local/fleet", "internal/local/controlplane", "internal/local/postgres", "internal/local/thirdparty", "internal/mqttacl", "internal/install"},
	{"internal/broker"},
	{"internal/broker/admin"},
	{"internal/broker/delivery", "internal/broker/ingest", "internal/broker/registration"},
	{"internal/broker/syncstate", "internal/broker/agentstatus"},
	{"internal/broker/deliveryqueue"},
	{"internal/broker/request", "internal/broker/settings"},
	{"internal/broker/listener/..."},
	{"internal/broker/tokens", "internal/broker/denylist"},
	{"internal/broker/changefeed"},
	{"internal/broker/store/..."},
	{"internal/broker/quota"},
	{"internal/broker/authz", "internal/broker/audit"},
	{"internal/hubsource/...", "internal/admission/..."},
	{"pkg/agent", "pkg/agent/registration"},
	{"pkg/agent/..."},
	{"pkg/session/..."},
	{"internal/resync", "internal/sessionfence"},
	{"pkg/transport/..."},
	{"pkg/codec/..."},
	{"internal/cmdline"},
	{"internal/workmetrics", "internal/fair", "internal/history", "internal/httpport", "internal/identity/...", "internal/leader", "internal/taskgroup", "internal/memlimit", "internal/bytebudget", "internal/telemetry", "internal/pki", "internal/childproc", "internal/kubeconfig", "internal/kubeerror", "internal/fields", "internal/informer", "internal/ocm", "internal/subscribers"},
	{"internal/earliest"},
	{"internal/refusal"},
	{"internal/testkit/..."},
	{"proto/...", "deploy"},
}

// apart lists imports that rows would allow. The left package, and all packages below it, never import the right
// one.
var apart = []struct{ from, to, why string }{
	{"internal/broker", "k8s.io/", "the broker treats payloads as opaque"},
	{"internal/broker", "open-cluster-management.io/", "the broker treats payloads as opaque"},
	{"internal/broker", module + "/pkg/codec/manifestwork", "the broker treats payloads as opaque"},
	{"internal/broker", module + "/pkg/agent", "the broker knows no agent, only subscriptions"},
	{"internal/broker", module + "/internal/hubsource", "the broker knows no hub, only sources"},
	{"internal/broker", module + "/pkg/session", "a session is the other end of the broker"},
	{"internal/broker/delivery", module + "/internal/broker/ingest", "streams send committed changes, whatever client committed them"},
	{"internal/broker/ingest", module + "/internal/broker/delivery", "a publish waits for no stream"},
	{"internal/broker/ingest", module + "/internal/broker/syncstate", "commit hooks report the sync state of clients to it"},
	{"internal/hubsource", module + "/pkg/agent", "hub and agent meet on the wire only"},
	{"pkg", module + "/internal/broker", "what programs import does not bring a broker along"},
}

// pure lists the packages without clock, socket, lock, file, logger and random numbers.
var pure = []string{"pkg/codec/...", "internal/workmetrics", "internal/fair", "internal/resync", "internal/sessionfence", "internal/kubeerror", "internal/broker/deliveryqueue", "internal/broker/quota", "internal/admission", "internal/hubsource/core"}

// impure lists the packages that they may not import. time is allowed for its types.
var impure = []string{
	"bufio", "context", "crypto/rand", "io/ioutil", "log", "math/rand", "net", "os", "sync", "syscall",
	"google.golang.org/grpc", "k8s.io/client-go", "k8s.io/klog", "github.com/prometheus", "github.com/go-logr",
}

// harmless lists the exceptions. They open no socket.
var harmless = []string{"net/url", "net/netip"}

// clock lists the functions of package time that pure packages may not call.
var clock = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

func TestImports_PointDownwards(t *testing.T) {
	report(t, checkRows(product(t)))

	report(t, checkRows([]source{mustParse(t, "internal/broker/b_test.go", `package broker
import _ "github.com/hawser-io/hawser/internal/cli"`)}))
	wantViolation(t, checkRows([]source{mustParse(t, "internal/resync/x.go", `package resync
import _ "github.com/hawser-io/hawser/pkg/session"`)}), "points upwards")
	wantViolation(t, checkRows([]source{mustParse(t, "internal/newthing/x.go", `package newthing`)}), "has no row")
	wantViolation(t, checkRows([]source{mustParse(t, "pkg/session/x.go", `package session
import _ "github.com/hawser-io/hawser/internal/testkit"`)}), "tests only")
	wantViolation(t, checkRows([]source{mustParse(t, "internal/broker/x.go", `package broker
import _ "github.com/hawser-io/hawser/internal/broker/store/storetest"`)}), "tests only")
}

func TestImports_StayApart(t *testing.T) {
	report(t, checkApart(product(t)))

	wantViolation(t, checkApart([]source{mustParse(t, "internal/broker/store/x.go", `package store
import _ "k8s.io/apimachinery/pkg/types"`)}), "opaque")
}

func TestImports_PurePackages(t *testing.T) {
	report(t, checkPure(product(t)))

	for _, imported := range []string{"net/http", "os", "sync/atomic", "log/slog", "math/rand/v2"} {
		wantViolation(t, checkPure([]source{mustParse(t, "internal/resync/x.go", fmt.Sprintf("package resync\nimport _ %q", imported))}), imported)
	}
	wantViolation(t, checkPure([]source{mustParse(t, "pkg/codec/manifestwork/x.go", `package manifestwork
import clock "time"
var start = clock.Now()`)}), "time.Now")
	report(t, checkPure([]source{mustParse(t, "pkg/codec/x.go", `package codec
import "time"
func f(t time.Time) time.Duration { return t.Sub(time.Time{}) }`)}))
}

func checkRows(files []source) []string {
	var bad []string
	for _, s := range files {
		if strings.HasPrefix(s.path, "test/") {
			continue // tests and benchmarks may import every package
		}
		row := rowOf(s.dir())
		if row < 0 {
			bad = append(bad, fmt.Sprintf("%s: package %s has no row in test/architecture: decide what it may import", s.path, s.dir()))
			continue
		}
		if s.isTest() {
			continue
		}
		for _, i := range s.imports() {
			to, ours := strings.CutPrefix(i, module+"/")
			switch {
			case !ours:
			case testOnly(to):
				if !s.forTests() {
					bad = append(bad, fmt.Sprintf("%s imports %s, which is for tests only", s.path, to))
				}
			case rowOf(to) >= 0 && rowOf(to) < row && !testOnly(s.dir()):
				bad = append(bad, fmt.Sprintf("%s imports %s: the arrow points upwards, see the rows in test/architecture", s.path, to))
			}
		}
	}
	return bad
}

// rowOf returns the row of a package, -1 if no pattern matches.
func rowOf(dir string) int {
	row, length := -1, 0
	for n, patterns := range rows {
		for _, p := range patterns {
			if matches(p, dir) && len(p) > length {
				row, length = n, len(p)
			}
		}
	}
	return row
}

func matches(pattern, dir string) bool {
	above, deep := strings.CutSuffix(pattern, "/...")
	return dir == above || deep && strings.HasPrefix(dir, above+"/")
}

func checkApart(files []source) []string {
	var bad []string
	for _, s := range files {
		for _, rule := range apart {
			if s.isTest() || !matches(rule.from+"/...", s.dir()) {
				continue
			}
			for _, i := range s.imports() {
				if under(i, rule.to) {
					bad = append(bad, fmt.Sprintf("%s imports %s: %s", s.path, i, rule.why))
				}
			}
		}
	}
	return bad
}

// under reports whether an imported path is above, or below it.
func under(imported, above string) bool {
	above = strings.TrimSuffix(above, "/")
	return imported == above || strings.HasPrefix(imported, above+"/")
}

func checkPure(files []source) []string {
	var bad []string
	for _, s := range files {
		if s.forTests() || !isPure(s.dir()) {
			continue
		}
		for _, i := range s.imports() {
			for _, forbidden := range impure {
				if under(i, forbidden) && !slices.Contains(harmless, i) {
					bad = append(bad, fmt.Sprintf("%s imports %s, but the package is pure: inputs in, decisions out", s.path, i))
				}
			}
		}
		for _, name := range clock {
			for _, where := range s.uses("time", name) {
				bad = append(bad, fmt.Sprintf("%s: time.%s in a pure package: take the time as an argument", where, name))
			}
		}
	}
	return bad
}

func isPure(dir string) bool {
	for _, p := range pure {
		if matches(p, dir) {
			return true
		}
	}
	return false
}
