//go:build linux

package attack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit"
)

const (
	// clusters is the number of clusters with a well-behaved agent. evil is the cluster of the attacker's
	// certificate.
	clusters = 8
	evil     = "evil"
	source   = "hub"
	validFor = 2 * time.Hour

	// nofile is the number of open files that the broker may have.
	nofile = 1024

	patience = 30 * time.Second
)

func cluster(i int) string { return fmt.Sprintf("c%d", i) }

// stage is one broker with its fleet, and possibly an attacker and a hub.
type stage struct {
	t        *testing.T
	dir      string
	pki      pki.Dir
	addr     string // of the broker
	admin    string
	broker   *childproc.Process
	fleet    *actor
	hub      *actor // nil unless clusters join
	brokerAt childproc.Spec
}

// prepareStage prepares the files and addresses of broker and fleet.
func prepareStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t: t, dir: t.TempDir(), addr: testkit.FreeAddr(t), admin: testkit.FreeAddr(t)}
	s.certify()
	return s
}

// newStage starts broker and fleet on core 0. If hub is true, it starts a hub beside the attacker.
func newStage(t *testing.T, hub bool) *stage {
	t.Helper()
	s := prepareStage(t)
	config := filepath.Join(s.dir, "broker.yaml")
	rule := fmt.Sprintf("identities: [{commonName: 'hawser:source:%s', role: source, name: %s}, "+
		"{commonName: 'hawser:viewer:%s', role: viewer, name: %s}]\n", source, source, viewer, viewer)
	if hub {
		rule += joinConfig
	}
	if err := os.WriteFile(config, []byte(rule), 0o600); err != nil {
		t.Fatal(err)
	}
	s.brokerAt = childproc.Spec{
		Name: "broker", Path: "prlimit", LogFile: filepath.Join(s.dir, "broker.log"),
		Args: []string{
			fmt.Sprintf("--nofile=%d:%d", nofile, nofile), "taskset", "-c", "0", brokerProgram(t),
			"--config", config, "--listen", s.addr, "--admin-listen", s.admin, "--data-dir", filepath.Join(s.dir, "data"),
			"--tls-cert-file", s.pki.Cert(pki.Broker, "broker"), "--tls-key-file", s.pki.Key(pki.Broker, "broker"), "--client-ca-file", s.pki.CACert(),
		},
		Ready: s.ready,
	}
	if os.Getenv("BROKER") == "" { // the broker of another commit may not have this flag
		s.brokerAt.Args = append(s.brokerAt.Args, "--audit=rejections")
	}
	s.start(hub)
	return s
}

// start starts the broker, the hub if required, and then the fleet.
func (s *stage) start(hub bool) {
	s.t.Helper()
	s.startBroker()
	s.t.Cleanup(func() { s.broker.Kill() })
	if hub {
		s.hub = s.play("1", "hub", s.addr)
		s.hub.wait("ready")
	}
	s.fleet = s.play("0", "fleet", s.addr)
	s.fleet.wait("ready")
}

// brokerProgram returns the path of the broker that `make build` has built. BROKER names another one, for
// comparison with another commit.
func brokerProgram(t *testing.T) string {
	t.Helper()
	path := os.Getenv("BROKER")
	if path == "" {
		path = "../../bin/hawser-broker"
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: run make hostile, which builds it", err)
	}
	return path
}

func (s *stage) certify() {
	s.t.Helper()
	s.pki = pki.Dir(filepath.Join(s.dir, "pki"))
	if _, err := s.pki.Init("test", pki.Starting(time.Now(), validFor), false); err != nil {
		s.t.Fatal(err)
	}
	requests := []pki.Request{
		{Role: pki.Broker, Name: "broker", Hosts: []string{"127.0.0.1"}},
		{Role: pki.Source, Name: source}, {Role: pki.Agent, Name: evil}, {Role: pki.Viewer, Name: viewer},
	}
	for i := range clusters {
		requests = append(requests, pki.Request{Role: pki.Agent, Name: cluster(i)})
	}
	for _, r := range requests {
		r.Valid = pki.Starting(time.Now(), validFor)
		if _, err := s.pki.Issue(r, false); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *stage) startBroker() {
	s.t.Helper()
	p, err := childproc.Start(s.t.Context(), s.brokerAt)
	if err != nil {
		s.t.Fatal(err)
	}
	s.broker = p
}

func (s *stage) ready(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+"/readyz", nil)
	if err != nil {
		return err
	}
	c := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(body)))
	}
	return err
}

// alive returns an error if the broker has ended.
func (s *stage) alive() error {
	select {
	case <-s.broker.Done():
		return fmt.Errorf("the broker ended: %s", s.broker.LogTail())
	default:
		return nil
	}
}

// memory reads a field of the broker's /proc/PID/status, in bytes.
func (s *stage) memory(field string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.broker.PID()))
	if err != nil {
		return -1 // the process has ended; alive reports it
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return n << 10
		}
	}
	return -1
}

// restartPeak resets the peak of the broker's memory in the kernel.
func (s *stage) restartPeak() {
	s.t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.broker.PID()), []byte("5"), 0); err != nil {
		s.t.Fatal(err)
	}
}

// actor is another process of this test binary. It writes JSON lines to its standard output, see [outputLine].
type actor struct {
	t       *testing.T
	name    string
	process *childproc.Process
	stdin   string // file from which it reads orders
	mu      sync.Mutex
	read    int // number of read bytes of its log
	lines   []outputLine
}

// outputLine is one line of an actor.
type outputLine struct {
	At   time.Time     // start of the reported action
	What string        // delivery, status, connect, lease, join, ready, stopped, verified, load
	Took time.Duration // delivery, status, connect, lease, join
	Of   string        // the cluster of a delivery, status, connect
	Text string
}

// emit writes one line of an actor.
func emit(l outputLine) error { return json.NewEncoder(os.Stdout).Encode(l) }

// play starts an actor on a core. addr is the address of the broker or the sink.
func (s *stage) play(core, name, addr string) *actor {
	s.t.Helper()
	log, err := os.CreateTemp(s.dir, name+"-*.log")
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	a := &actor{t: s.t, name: name, stdin: log.Name() + ".orders"}
	a.process, err = childproc.Start(s.t.Context(), childproc.Spec{
		Name: name, Path: "taskset", Args: []string{"-c", core, os.Args[0]}, LogFile: log.Name(),
		Env: []string{part + "=" + name, "HAWSER_HOSTILE_ADDR=" + addr, "HAWSER_HOSTILE_PKI=" + string(s.pki), "HAWSER_HOSTILE_ORDERS=" + a.stdin},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(a.process.Kill)
	return a
}

// order sends an order to the actor.
func (a *actor) order(what string) {
	a.t.Helper()
	if err := os.WriteFile(a.stdin+".new", []byte(what), 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(a.stdin+".new", a.stdin); err != nil {
		a.t.Fatal(err)
	}
}

// ordered calls do with each order of the test, until ctx ends.
func ordered(ctx context.Context, do func(what string) error) error {
	last := ""
	return every(ctx, 20*time.Millisecond, func() error {
		b, err := os.ReadFile(os.Getenv("HAWSER_HOSTILE_ORDERS"))
		if errors.Is(err, fs.ErrNotExist) || err == nil && string(b) == last {
			return nil // no new order
		}
		if err != nil {
			return err
		}
		last = string(b)
		return do(last)
	})
}

// every calls f until ctx ends or it fails.
func every(ctx context.Context, interval time.Duration, f func() error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := f(); err != nil {
			return err
		}
	}
}

// output returns all lines that the actor has written so far.
func (a *actor) output() []outputLine {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	b, err := os.ReadFile(strings.TrimSuffix(a.stdin, ".orders"))
	if err != nil {
		a.t.Fatal(err)
	}
	b = b[a.read:]
	b = b[:bytes.LastIndexByte(b, '\n')+1]
	a.read += len(b)
	for scan := bufio.NewScanner(bytes.NewReader(b)); scan.Scan(); {
		var l outputLine
		if json.Unmarshal(scan.Bytes(), &l) == nil { // otherwise it is a log line of a library
			a.lines = append(a.lines, l)
		}
	}
	return a.lines
}

// wait returns the first line of a kind. It waits up to patience.
func (a *actor) wait(what string) outputLine {
	a.t.Helper()
	var found *outputLine
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	err := every(ctx, 10*time.Millisecond, func() error {
		for _, l := range a.output() {
			if l.What == what {
				found = &l
				return io.EOF
			}
		}
		select {
		case <-a.process.Done():
			return fmt.Errorf("%s ended: %s", a.name, a.process.LogTail())
		default:
			return nil
		}
	})
	if found == nil {
		a.t.Fatalf("%s does not show %q: %v", a.name, what, err)
	}
	return *found
}

// took returns the durations of a kind of actions that began between two times.
func (a *actor) took(what string, from, to time.Time) (all []time.Duration) {
	a.t.Helper()
	for _, l := range a.output() {
		if l.What == what && !l.At.Before(from) && l.At.Before(to) {
			all = append(all, l.Took)
		}
	}
	return all
}
