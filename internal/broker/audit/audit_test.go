package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/pkg/codec"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

var aClient = Client{Identity: "agent/c1", Addr: "192.0.2.1:7", Conn: 3, Serial: "a1"}

// logged calls do with an audit stream of a level. It returns the written lines without their times, and their
// size in bytes.
func logged(t *testing.T, level Level, do func(*Log)) (lines []map[string]any, size int) {
	t.Helper()
	var out bytes.Buffer
	l := New(level, &out, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	do(l)
	ended, end := context.WithCancel(t.Context())
	end()
	l.Run(ended)
	size = out.Len()
	for line := range strings.Lines(out.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(m["time"])); err != nil || at.IsZero() {
			t.Errorf("%q has no time", line)
		}
		delete(m, "time")
		lines = append(lines, m)
	}
	return lines, size
}

// everything reports one event of each kind to a stream.
func everything(l *Log) {
	l.Connected(aClient, time.Unix(1000, 0).UTC())
	l.Ended(aClient, "expired")
	l.Refused(Client{Addr: "192.0.2.9:1"}, "192.0.2.9/32", "", "untrusted", errors.New("x509: no"))
	l.Published(Publish{
		Role: "source", Name: "hub", Addr: "192.0.2.2:1", Conn: 4, Kind: "spec", Bytes: 99, Result: "accepted",
		Envelope: &codec.Envelope{RawType: "t", Source: "hub", Cluster: "c1", ResourceID: "w", Version: 7, Data: []byte("a Secret"), RawMetadata: "a Secret"},
	})
	l.Called(aClient, "/s/Subscribe", nil)
	l.Operated(Client{Identity: "operator/o", Addr: "192.0.2.3:1"}, "/s/Approve", &hawserv1.ApproveRequest{
		Source: "hub", Cluster: "c1", Works: []*hawserv1.WithheldDeletion{{ResourceId: "w1", Revision: 3}, {ResourceId: "w2"}},
	}, nil)
	l.Operated(Client{Identity: "operator/o", Addr: "192.0.2.3:1"}, "/s/Backup", nil, errors.New("no room"))
}

func TestLevels(t *testing.T) {
	agent := map[string]any{"identity": "agent/c1", "addr": "192.0.2.1:7", "conn": 3.0, "serial": "a1"}
	with := func(base map[string]any, more ...any) map[string]any {
		m := map[string]any{}
		for k, v := range base {
			m[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			m[more[i].(string)] = more[i+1]
		}
		return m
	}
	operator := map[string]any{"identity": "operator/o", "addr": "192.0.2.3:1", "event": "operated"}
	ended := with(agent, "event", "ended", "reason", "expired")
	refused := map[string]any{"event": "rejected", "addr": "192.0.2.9:1", "reason": "untrusted", "error": "x509: no"}
	approved := with(operator, "method", "/s/Approve", "result", "ok", "request", map[string]any{
		"source": "hub", "cluster": "c1", "works": []any{"w1", "w2"}, "works_count": 2.0,
	})
	backup := with(operator, "method", "/s/Backup", "error", "no room")
	for level, want := range map[Level][]map[string]any{
		Off:        nil,
		Rejections: {ended, refused, approved, backup},
		All: {
			with(agent, "event", "connected", "certificate_not_after", "1970-01-01T00:16:40Z"), ended, refused,
			{
				"event": "published", "identity": "source/hub", "addr": "192.0.2.2:1", "conn": 4.0, "kind": "spec", "bytes": 99.0, "result": "accepted",
				"type": "t", "source": "hub", "cluster": "c1", "resource_id": "w", "version": 7.0,
			},
			with(agent, "event", "called", "method", "/s/Subscribe", "result", "ok"), approved, backup,
		},
	} {
		got, _ := logged(t, level, everything)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", level, d)
		}
	}
	if err := Level("loud").Validate(); err == nil {
		t.Error("a level that is none")
	}
}

// TestEvents_AreDocumented: docs/operations/health.md lists the levels, the events and the common fields that
// the stream has.
func TestEvents_AreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/operations/health.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, level := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| (?:nothing|rejected|also)").FindAllStringSubmatch(string(page), -1) {
		if err := Level(level[1]).Validate(); err != nil {
			t.Error(err)
		}
		names = append(names, level[1])
	}
	if want := []string{string(Off), string(Rejections), string(All)}; !slices.Equal(names, want) {
		t.Errorf("the page has the levels %q, want %q", names, want)
	}
	common, events := []string{"time", "event"}, map[string]bool{}
	for _, a := range (Client{Identity: "agent/c1", Addr: "192.0.2.1:7", Conn: 3, Serial: "a1", Account: "a"}).attrs() {
		common = append(common, a.Key)
	}
	lines, _ := logged(t, All, everything)
	for _, line := range lines {
		events[line["event"].(string)] = true
	}
	want := append(slices.Collect(maps.Keys(events)), common...)
	sentence := regexp.MustCompile(`(?m)^The common fields are (.*)$`).FindString(string(page))
	var got []string
	for _, name := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(sentence, -1) {
		got = append(got, name[1])
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("common fields and events (-stream +page):\n%s", d)
	}
}

// TestRefused_RepeatedIsCounted checks that the first rejection of a kind is written at once, and the number of
// the others after the period. The stream stays small with any number of kinds.
func TestRefused_RepeatedIsCounted(t *testing.T) {
	lines, size := logged(t, Rejections, func(l *Log) {
		now, wrong := time.Unix(1000, 0), errors.New(strings.Repeat("\x00", 1<<20))
		l.now = func() time.Time { return now }
		for range 1000 {
			l.Refused(aClient, "192.0.2.1/32", "/s/Publish", "scope", errors.New("not yours"))
		}
		for n := range 100_000 {
			from := fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255)
			l.Refused(Client{Addr: from + ":1"}, from+"/32", "", "failed", wrong)
		}
		l.repeat(false) // the period is not over yet
		now = now.Add(period)
		l.repeat(false)
		l.Refused(aClient, "192.0.2.1/32", "/s/Publish", "scope", errors.New("not yours"))
	})
	first, again := lines[0], lines[len(lines)-1]
	if first["method"] != "/s/Publish" || first["error"] != "not yours" || cmp.Diff(first, again) != "" {
		t.Errorf("first %v, in the next period %v", first, again)
	}
	count := map[string]float64{}
	for _, l := range lines {
		n := 1.0
		if r, ok := l["repeated"].(float64); ok {
			n = r
		}
		count[fmt.Sprint(l["reason"])] += n
	}
	if count["scope"] != 1001 || count["failed"] != 100_000 {
		t.Errorf("counted %v", count)
	}
	if len(lines) > 3*kinds || size > 150_000 {
		t.Errorf("%d lines, %d bytes", len(lines), size)
	}
}

// TestLines_AreBoundedAndPrintable checks that text of a client cannot make a line long or break it.
func TestLines_AreBoundedAndPrintable(t *testing.T) {
	huge := strings.Repeat("\x1b[2J\n\xff", 1<<18)
	lines, size := logged(t, All, func(l *Log) {
		l.Published(Publish{Role: huge, Name: huge, Addr: huge, Kind: "spec", Envelope: &codec.Envelope{RawType: huge, Source: huge, Cluster: huge, ResourceID: huge}})
		l.Operated(Client{}, huge, &hawserv1.ApproveRequest{Source: huge, Works: slices.Repeat([]*hawserv1.WithheldDeletion{{ResourceId: huge}}, 1000)}, errors.New(huge))
		l.Called(Client{Identity: huge, Serial: huge}, huge, nil)
	})
	if len(lines) != 3 || size > 40_000 {
		t.Errorf("%d lines, %d bytes", len(lines), size)
	}
}

// stuck is a writer that always fails.
type stuck struct{}

func (stuck) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestLog_NeverBlocksWriters checks that lines that do not fit into the queue, or cannot be written, are
// counted.
func TestLog_NeverBlocksWriters(t *testing.T) {
	registry := prometheus.NewRegistry()
	l := New(All, stuck{}, registry, slog.New(slog.DiscardHandler))
	const more = 10
	for range queued + more {
		l.Called(aClient, "/s/M", nil)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	l.Run(ended)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "hawser_broker_audit_dropped_records_total" && f.GetMetric()[0].GetCounter().GetValue() != queued+more {
			t.Errorf("%v were dropped, want %d", f.GetMetric()[0], queued+more)
		}
	}
}

var row = regexp.MustCompile("(?m)^\\| `(hawser_broker_audit_[a-z_]+)` \\| (counter) \\| (.*?) \\| .+ \\|$")

// TestMetrics_AreDocumented checks that docs/metrics.md and the registry agree.
func TestMetrics_AreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]string{}, map[string]string{}
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		want[m[1]] = strings.Trim(m[3], "`–")
	}
	registry := prometheus.NewRegistry()
	everything(New(All, &bytes.Buffer{}, registry, slog.New(slog.DiscardHandler)))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		got[f.GetName()] = ""
		for _, p := range f.GetMetric()[0].GetLabel() {
			got[f.GetName()] += p.GetName()
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("docs/metrics.md (-) and the registry (+) differ:\n%s", d)
	}
}

// TestLog_RecordsConnectsAndDisconnects checks that the log of the program reports connects, disconnects and
// rejections with their reasons, also without an audit stream. It reports no publishes. Repetitions are
// counted.
func TestLog_RecordsConnectsAndDisconnects(t *testing.T) {
	var out, log bytes.Buffer
	l := New(Off, &out, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
	now := time.Unix(1000, 0)
	l.now = func() time.Time { return now }
	everything(l)
	for range 5 {
		l.Disconnected(aClient)
	}
	for _, want := range []string{
		`level=INFO msg="a client has connected" addr=192.0.2.1:7 peer=agent/c1 conn=3 serial=a1 certificate_not_after=1970-01-01T00:16:40.000Z` + "\n",
		`level=INFO msg="a client has disconnected" addr=192.0.2.1:7 peer=agent/c1 conn=3 serial=a1` + "\n",
		`level=INFO msg="a client was rejected" addr=192.0.2.9:1 reason=untrusted error="x509: no"` + "\n",
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("not once %q in:\n%s", want, log.String())
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 3 || out.Len() != 0 || strings.Contains(log.String(), "Secret") {
		t.Errorf("%d lines, and %q:\n%s", n, out.String(), log.String())
	}
	now = now.Add(period)
	l.repeat(false)
	if want := `msg="the same event was repeated" of=left peer=agent/c1 from="" method="" times=4`; !strings.Contains(log.String(), want) {
		t.Errorf("no %q in:\n%s", want, log.String())
	}
	log.Reset()
	for n := range 100_000 { // a fleet reconnects, and an attacker scans
		client := Client{Identity: fmt.Sprint("agent/c", n), Addr: "192.0.2.1:7"}
		l.Connected(client, time.Time{})
		l.Refused(Client{Addr: "192.0.2.9:1"}, fmt.Sprint(n), "", "failed", errors.New("EOF"))
	}
	now = now.Add(period)
	l.repeat(false)
	if n := strings.Count(log.String(), "\n"); n > 2*kinds+2 || !strings.Contains(log.String(), fmt.Sprint("of=connected peer=\"\" from=\"\" method=\"\" times=", 100_000-kinds)) {
		t.Errorf("%d lines of 100,000 clients, the last of them:\n%.600s", n, log.String()[max(0, log.Len()-600):])
	}
}
