package interop

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
	"github.com/hawser-io/hawser/pkg/codec"
)

// event is a CloudEvent in the form that the OCM programs print and accept.
type event struct {
	ID          string         `json:"id,omitempty"`
	Source      string         `json:"source,omitempty"`
	Type        string         `json:"type"`
	Extensions  map[string]any `json:"extensions,omitempty"`
	ContentType string         `json:"contentType,omitempty"`
	Data        string         `json:"data,omitempty"`
}

// outputLine is a line that an OCM program prints, command a line that it accepts.
type outputLine struct {
	What   string                `json:"what"`
	ID     int                   `json:"id"`
	Error  string                `json:"error"`
	Reason string                `json:"reason"`
	Addr   string                `json:"addr"`
	Count  int                   `json:"count"`
	Event  *event                `json:"event"`
	Work   *workv1.ManifestWork  `json:"work"`
	Works  []workv1.ManifestWork `json:"works"`

	Type    string   `json:"type"`
	Object  *object  `json:"object"`
	Objects []object `json:"objects"`
}

// object is any Kubernetes object, also without a kind.
type object struct{ unstructured.Unstructured }

// UnmarshalJSON implements [json.Unmarshaler].
func (o *object) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &o.Object) }

type command struct {
	ID        int                  `json:"id"`
	Do        string               `json:"do"`
	Namespace string               `json:"namespace,omitempty"`
	Name      string               `json:"name,omitempty"`
	Status    bool                 `json:"status,omitempty"`
	Patch     json.RawMessage      `json:"patch,omitempty"`
	Work      *workv1.ManifestWork `json:"work,omitempty"`
	Event     *event               `json:"event,omitempty"`
	Text      string               `json:"text,omitempty"`
	Count     int                  `json:"count,omitempty"`
	Type      string               `json:"type,omitempty"`
	Object    any                  `json:"object,omitempty"`
}

func (l outputLine) String() string {
	b, err := json.Marshal(l)
	if err != nil {
		return err.Error()
	}
	const enough = 6000
	return string(b[:min(len(b), enough)])
}

// program is an OCM program that runs until the test ends, or is killed.
type program struct {
	*journal[outputLine]
	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	log    syncbuffer.Buffer // standard error; complete when done is closed
	done   chan struct{}
	lastID int
	// stateless: the broker does not remove Hawser's attributes.
	stateless atomic.Bool
}

// start runs an OCM program.
func start(t testing.TB, name string, args ...string) *program {
	t.Helper()
	p := &program{
		journal: newJournal(name, outputLine.String), t: t,
		cmd: exec.Command(filepath.Join(programs, name), args...), done: make(chan struct{}),
	}
	p.cmd.Stderr = &p.log
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	go func() { // kill waits for it
		defer close(p.done)
		err := p.read(stdout)
		p.end(errors.Join(err, p.cmd.Wait(), errors.New("process ended")))
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, p.log.String())
		}
	})
	return p
}

func (p *program) read(stdout io.Reader) error {
	r := bufio.NewReader(stdout)
	for {
		b, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var l outputLine
		if err := json.Unmarshal(b, &l); err != nil {
			return fmt.Errorf("line %q: %w", b, err)
		}
		if name := ownAttribute(l.Event); name != "" && !p.stateless.Load() {
			p.t.Errorf("%s got attribute %s, which is for Hawser clients only: %s", p.name, name, l)
		}
		p.add(l)
	}
}

// ownAttribute returns the name of an attribute that OCM clients must not see, "" if there is none.
func ownAttribute(e *event) string {
	if e == nil {
		return ""
	}
	for name := range e.Extensions {
		if strings.HasPrefix(name, "hawser") {
			return name
		}
	}
	return ""
}

// kill kills the program. It may be called repeatedly.
func (p *program) kill() {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("%s: %v", p.name, err)
	}
	<-p.done
}

// try sends a command to the program and returns its answer.
func (p *program) try(c command) outputLine {
	p.t.Helper()
	p.lastID++
	c.ID = p.lastID
	b, err := json.Marshal(c)
	if err != nil {
		p.t.Fatal(err)
	}
	from := p.position()
	if _, err := p.stdin.Write(append(b, '\n')); err != nil {
		p.t.Fatalf("%s: %v\n%s", p.name, err, p)
	}
	return p.await(p.t, from, fmt.Sprintf("the answer to %s", c.Do), func(l outputLine) bool { return l.What == "done" && l.ID == c.ID })
}

// do is try for commands that must succeed.
func (p *program) do(c command) outputLine {
	p.t.Helper()
	l := p.try(c)
	if l.Error != "" {
		p.t.Fatalf("%s: %s %s: %s", p.name, c.Do, c.Name, l.Error)
	}
	return l
}

// issued serializes the creation of certificates.
var issued sync.Mutex

// certify returns the certificate files of (role, name).
func certify(t testing.TB, role pki.Role, name string) (cert, key string) {
	t.Helper()
	issued.Lock()
	defer issued.Unlock()
	r := pki.Request{Role: role, Name: name, Valid: pki.Starting(time.Now(), validFor)}
	if role == pki.Broker {
		r.Hosts = []string{"127.0.0.1", "localhost"}
	}
	if _, err := certs.Issue(r, false); err != nil && !errors.Is(err, pki.ErrExists) {
		t.Fatal(err)
	}
	return certs.Cert(role, name), certs.Key(role, name)
}

// clientConfig writes a client configuration of sdk-go, with additional lines.
func clientConfig(t testing.TB, role pki.Role, name, addr, more string) string {
	t.Helper()
	cert, key := certify(t, role, name)
	return configFile(t, addr, fmt.Sprintf("clientCertFile: %s\nclientKeyFile: %s\n%s", cert, key, more))
}

// configFile writes a client configuration of sdk-go. client holds the lines with the client's credentials.
func configFile(t testing.TB, addr, client string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf("url: %s\ncaFile: %s\n%s", addr, certs.CACert(), client)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// startAgent runs an OCM agent of the cluster.
func startAgent(t testing.TB, cluster, addr string, args ...string) *ocmAgent {
	t.Helper()
	args = append(args, "-config", clientConfig(t, pki.Agent, cluster, addr, ""), "-cluster", cluster, "-agent-id", cluster+"-ocm")
	return &ocmAgent{program: start(t, "ocmagent", args...), cluster: cluster}
}

// startSource runs an OCM source.
func startSource(t testing.TB, id, addr string) *ocmSource {
	t.Helper()
	return &ocmSource{program: start(t, "ocmsource", "-config", clientConfig(t, pki.Source, id, addr, ""), "-source-id", id)}
}

// startOCMBroker runs an OCM broker. addr "" means a free port.
func startOCMBroker(t testing.TB, addr string) *ocmBroker {
	t.Helper()
	cert, key := certify(t, pki.Broker, "broker")
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	b := &ocmBroker{program: start(t, "ocmbroker", "-listen", addr, "-cert", cert, "-key", key, "-client-ca", certs.CACert())}
	b.addr = b.await(t, 0, "its address", func(l outputLine) bool { return l.What == "listening" }).Addr
	return b
}

// what matches lines of one kind.
func what(kind string) func(outputLine) bool {
	return func(l outputLine) bool { return l.What == kind }
}

// ofID matches lines of one kind about one work.
func ofID(kind, id string) func(outputLine) bool {
	return func(l outputLine) bool {
		switch {
		case l.What != kind:
			return false
		case l.Event != nil:
			return l.Event.Extensions[codec.ExtResourceID] == id
		case l.Work != nil:
			return string(l.Work.UID) == id
		}
		return false
	}
}
