package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/internal/cmdline"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// asProgram is the environment variable that makes the test binary run as the program, with its arguments.
const asProgram = "HAWSER_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

const patience = 30 * time.Second

// process is the program as a part of the test process.
type process struct {
	t           *testing.T
	grpc, admin string
	out         *syncbuffer.Buffer
	stop        context.CancelFunc
	ended       chan error
}

// launch runs the program until both ports are open.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	lines, w := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	p := &process{t: t, stop: stop, ended: make(chan error, 1), out: &syncbuffer.Buffer{}}
	c := command(p.out, w)
	c.SetArgs(append(args, "--log-format=json"))
	go func() { // end receives the result
		err := c.ExecuteContext(ctx)
		p.ended <- err
		_ = w.CloseWithError(io.EOF) // never fails
	}()
	opened := make(chan [2]string, 2)
	go func() { // ends with the end of the log
		d := json.NewDecoder(lines)
		for {
			var l struct{ Msg, Addr string }
			if d.Decode(&l) != nil {
				return
			}
			if strings.HasSuffix(l.Msg, "port is open") {
				opened <- [2]string{l.Msg, l.Addr}
			}
		}
	}()
	for range 2 {
		select {
		case o := <-opened:
			if strings.HasPrefix(o[0], "grpc") {
				p.grpc = o[1]
			} else {
				p.admin = o[1]
			}
		case err := <-p.ended:
			t.Fatalf("the program ended: %v", err)
		case <-time.After(patience):
			t.Fatal("the ports are not open")
		}
	}
	return p
}

func (p *process) end() {
	p.t.Helper()
	p.stop()
	select {
	case err := <-p.ended:
		if err != nil {
			p.t.Errorf("the program ended with %v", err)
		}
	case <-time.After(patience):
		p.t.Fatal("the program does not end")
	}
}

func (p *process) get(path string) (int, string) {
	p.t.Helper()
	c := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get("http://" + p.admin + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// certificates makes a PKI in a directory, as `hawser pki` does.
func certificates(t *testing.T) pki.Dir {
	t.Helper()
	d := pki.Dir(t.TempDir())
	if _, err := d.Init("test", pki.Starting(time.Now(), time.Hour), false); err != nil {
		t.Fatal(err)
	}
	for _, r := range []pki.Request{
		{Role: pki.Broker, Name: "broker", Hosts: []string{"127.0.0.1"}},
		{Role: pki.Source, Name: "hub"}, {Role: pki.Agent, Name: "c1"}, {Role: pki.Operator, Name: "olga"},
	} {
		r.Valid = pki.Starting(time.Now(), time.Hour)
		if _, err := d.Issue(r, false); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func (p *process) connect(d pki.Dir, role pki.Role, name string) transport.Conn {
	p.t.Helper()
	files := identity.Files{CA: d.CACert(), Cert: d.Cert(role, name), Key: d.Key(role, name)}
	creds, err := files.Client("", func(err error) { p.t.Error(err) })
	if err != nil {
		p.t.Fatal(err)
	}
	dialer, err := transportgrpc.NewDialer(transportgrpc.Options{Target: p.grpc, Credentials: creds})
	if err != nil {
		p.t.Fatal(err)
	}
	c, err := dialer.Dial(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// TestProgram_KeepsAcknowledgedWrites checks a restart, over mTLS.
func TestProgram_KeepsAcknowledgedWrites(t *testing.T) {
	d := certificates(t)
	file := filepath.Join(t.TempDir(), "broker.yaml")
	if err := os.WriteFile(file, []byte("identities: [{commonName: 'hawser:source:hub', role: source, name: hub}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--config", file, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--tls-cert-file", d.Cert(pki.Broker, "broker"), "--tls-key-file", d.Key(pki.Broker, "broker"), "--client-ca-file", d.CACert(),
	}
	p := launch(t, args...)
	if code, body := p.get("/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, body := p.get("/metrics"); code != http.StatusOK || !strings.Contains(body, "hawser_broker_subscriptions") {
		t.Errorf("metrics: %d, %d bytes", code, len(body))
	}
	source := p.connect(d, pki.Source, "hub")
	e, err := codec.Builder{
		ID: "1", Time: time.Now(), Source: "hub", Cluster: "c1",
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.CreateRequest}.String(),
		ContentType: codec.ContentTypeJSON, Data: []byte(`{"manifests":[]}`),
		Extensions: map[string]any{codec.ExtResourceID: "w1", codec.ExtResourceVersion: 1, codec.ExtMetadata: `{"name":"w","namespace":"c1"}`},
	}.Event()
	if err != nil {
		t.Fatal(err)
	}
	if r, err := source.Publish(t.Context(), e, ""); err != nil || r.Outcome != codec.OutcomeAccepted {
		t.Fatalf("publish: %v, %v", r, err)
	}
	if err := source.Close(); err != nil {
		t.Error(err)
	}
	p.end()

	p = launch(t, args...)
	agent := p.connect(d, pki.Agent, "c1")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ready := func(a transport.Accepted) {
		request, err := codec.NewSpecResyncRequest(codec.ResyncParams{ID: "r", Time: time.Now(), Source: "agent", Cluster: "c1", DataType: codec.ManifestBundles}, nil)
		if err == nil {
			_, err = agent.Publish(ctx, request, a.SubscriptionID)
		}
		if err != nil {
			t.Error(err)
		}
	}
	got := ""
	err = agent.Subscribe(ctx, transport.Subscription{Filter: transport.Filter{Cluster: "c1", DataType: codec.ManifestBundles}}, ready,
		func(_ context.Context, e codec.Event) error {
			got, _, err = codec.StringExtension(e, codec.ExtResourceID)
			cancel()
			return err
		})
	if got != "w1" {
		t.Errorf("got work %q, %v", got, err)
	}
	if err := agent.Close(); err != nil {
		t.Error(err)
	}
	p.end()
}

func TestProgram_Insecure(t *testing.T) {
	p := launch(t, "--insecure", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", t.TempDir())
	if code, body := p.get("/readyz"); code != http.StatusOK {
		t.Errorf("readyz: %d %s", code, body)
	}
	p.end()
}

// TestProgram_RestrictsFilePermissions checks also a directory that exists with access for all, and has files of
// a former release.
func TestProgram_RestrictsFilePermissions(t *testing.T) {
	data := t.TempDir()
	former := filepath.Join(data, "former")
	//nolint:gosec // that others can read them is what is to be mended
	err := errors.Join(os.WriteFile(former, nil, 0o600), os.Chmod(former, 0o644), os.Chmod(data, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	syscall.Umask(0o022)
	p := launch(t, "--insecure", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data-dir", data)
	defer p.end()
	if open, err := cmdline.MakePrivate(data); open != 0 || err != nil {
		t.Errorf("others can read %d files, %v", open, err)
	}
}

func TestProgram_Version(t *testing.T) {
	var out bytes.Buffer
	c := command(&out, io.Discard)
	c.SetArgs([]string{"version"})
	if err := c.Execute(); err != nil || !strings.HasPrefix(out.String(), "hawser-broker ") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestProgram_Refuses(t *testing.T) {
	d := certificates(t)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"audit":           {[]string{"--insecure", "--listen=127.0.0.1:0", "--audit=loud"}, "off, rejections or all"},
		"argument":        {[]string{"start"}, "unknown command"},
		"flag":            {[]string{"--port=1"}, "unknown flag"},
		"log level":       {[]string{"--insecure", "--listen=127.0.0.1:0", "--log-level=loud"}, "log level"},
		"no certificate":  {[]string{"--tls-cert-file=/nonexistent/a", "--tls-key-file=/nonexistent/b", "--client-ca-file=" + d.CACert()}, "/nonexistent/a"},
		"data directory":  {[]string{"--insecure", "--listen=127.0.0.1:0", "--data-dir=" + d.CACert()}, "store"},
		"event too small": {[]string{"--insecure", "--listen=127.0.0.1:0", "--data-dir=" + t.TempDir(), "--max-event-bytes=10"}, "use at least"},
		"address in use":  {[]string{"--insecure", "--listen=127.0.0.1:0", "--data-dir=" + t.TempDir(), "--admin-listen=256.0.0.1:1"}, "admin"},
	} {
		cmd := command(io.Discard, io.Discard)
		cmd.SetArgs(c.args)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}
