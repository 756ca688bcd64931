package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-io/hawser/internal/testkit/smalldisk"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// The tests run a real broker in its own process, on a small disk of its own.

// volume is a disk that a test fills and empties.
type volume struct {
	*smalldisk.Disk
	t *testing.T
}

func newVolume(t *testing.T) *volume {
	t.Helper()
	return &volume{smalldisk.New(t), t}
}

// fill uses all space on the volume.
func (v *volume) fill() {
	v.t.Helper()
	f, err := os.OpenFile(v.Path("filler"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		v.t.Fatal(err)
	}
	for some := int64(64 << 20); some >= 4<<10; {
		end, err := f.Seek(0, io.SeekEnd)
		if err == nil {
			err = syscall.Fallocate(int(f.Fd()), 0, end, some)
		}
		if errors.Is(err, syscall.ENOSPC) {
			some /= 2
		} else if err != nil {
			v.t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		v.t.Fatal(err)
	}
}

// empty deletes the files that fill wrote.
func (v *volume) empty() {
	v.t.Helper()
	if err := os.Remove(v.Path("filler")); err != nil {
		v.t.Fatal(err)
	}
}

// onDisk is a broker on a volume.
type onDisk struct {
	t           *testing.T
	cmd         *exec.Cmd
	grpc, admin string
	log         *strings.Builder // complete after the end of the process
	logged      chan struct{}
	source      transport.Conn
}

// start runs a broker until its ports are open, or it ends, and connects a source.
func (v *volume) start() *onDisk {
	v.t.Helper()
	b := &onDisk{t: v.t, log: &strings.Builder{}, logged: make(chan struct{})}
	b.cmd = v.Command(v.t.Context(), os.Args[0], "--insecure", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--data-dir="+filepath.Join(v.Dir, "store"), "--log-format=json")
	b.cmd.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := b.cmd.StderrPipe()
	if err == nil {
		err = b.cmd.Start()
	}
	if err != nil {
		v.t.Fatal(err)
	}
	opened := make(chan string, 2)
	go func() { // end waits for the goroutine
		defer close(b.logged)
		defer close(opened)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var l struct{ Msg, Addr string }
			if json.Unmarshal(lines.Bytes(), &l) == nil && strings.HasSuffix(l.Msg, "port is open") {
				opened <- l.Msg + " " + l.Addr
			}
			b.log.WriteString(lines.Text() + "\n")
		}
	}()
	for range 2 {
		what, addr, _ := strings.Cut(<-opened, " port is open ")
		if what == "grpc" {
			b.grpc = addr
		} else {
			b.admin = addr
		}
	}
	if b.grpc == "" {
		return b
	}
	d, err := transportgrpc.NewDialer(transportgrpc.Options{Target: b.grpc, Insecure: true})
	if err == nil {
		b.source, err = d.Dial(v.t.Context())
	}
	if err != nil {
		v.t.Fatal(err)
	}
	return b
}

// end ends the broker with a signal and returns its log.
func (b *onDisk) end(s syscall.Signal) string {
	b.t.Helper()
	if b.source != nil {
		if err := b.source.Close(); err != nil {
			b.t.Error(err)
		}
	}
	if err := b.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		b.t.Error(err)
	}
	<-b.logged
	_ = b.cmd.Wait() // the result of the process does not matter here
	return b.log.String()
}

// publish publishes a work or its deletion, and returns the outcome.
func (b *onDisk) publish(within time.Duration, id string, version int, deleted bool) (string, error) {
	e := codec.Builder{
		ID: "1", Time: time.Now(), Source: "hub", Cluster: "c1",
		Type:        codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.CreateRequest}.String(),
		ContentType: codec.ContentTypeJSON, Data: []byte(`{"manifests":[]}`),
		Extensions: map[string]any{codec.ExtResourceID: id, codec.ExtResourceVersion: version, codec.ExtMetadata: `{"name":"` + id + `","namespace":"c1"}`},
	}
	if deleted {
		e.Type = codec.EventType{DataType: codec.ManifestBundles, Subresource: codec.Spec, Action: codec.DeleteRequest}.String()
		e.Data, e.Extensions[codec.ExtDeletionTimestamp] = nil, time.Now()
	}
	event, err := e.Event()
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), within)
	defer cancel()
	r, err := b.source.Publish(ctx, event, "")
	return r.Outcome, err
}

// backup connects as an operator. The returned request starts a backup, for which the store begins a log. The
// channel gets the result.
func (b *onDisk) backup() (request func() <-chan error) {
	b.t.Helper()
	cc, err := grpc.NewClient(b.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := cc.Close(); err != nil {
			b.t.Error(err)
		}
	})
	c := hawserv1.NewAdminServiceClient(cc)
	list, err := c.ListClusters(b.t.Context(), &hawserv1.ListClustersRequest{})
	for err == nil {
		_, err = list.Recv()
	}
	if !errors.Is(err, io.EOF) {
		b.t.Fatal(err)
	}
	return func() <-chan error {
		sent := make(chan error, 1)
		go func() { // the receiver of sent waits for the goroutine
			s, err := c.Backup(b.t.Context(), &hawserv1.BackupRequest{})
			for err == nil {
				_, err = s.Recv()
			}
			if errors.Is(err, io.EOF) {
				err = nil
			}
			sent <- err
		}()
		return sent
	}
}

// must publishes and requires this outcome. As a source does, it retries what the store temporarily rejects.
//
// Scenario:
//
//	t1: the disk is filled. The store accepts only deletions.
//	t2: a compaction finds no space. Until it gets that of the reserve, all writes are rejected.
//	t3: a deletion is published.
func (b *onDisk) must(outcome, id string, version int, deleted bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	for {
		got, err := b.publish(patience, id, version, deleted)
		if transport.CodeOf(err) != transport.CodeOverloaded || ctx.Err() != nil {
			if got != outcome || err != nil {
				b.t.Errorf("%s: %q, %v; want %q", id, got, err, outcome)
			}
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// eventually publishes new works until one is accepted or, if refusal is set, until one is rejected with that
// text. A publish in flight delays the result.
func (b *onDisk) eventually(refusal string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	for n := 0; ; n++ {
		_, err := b.publish(time.Second, fmt.Sprint("any-", n), 1, false)
		if refusal == "" && err == nil || refusal != "" && err != nil && strings.Contains(err.Error(), refusal) {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("publishes still end with %v, not %q", err, refusal)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ready sends a request to the admin port on a connection that stays open.
func (b *onDisk) ready(c *http.Client, path string) (int, string) {
	b.t.Helper()
	r, err := c.Get("http://" + b.admin + path)
	if err != nil {
		b.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// reports waits until the broker returns this code and text.
func (b *onDisk) reports(c *http.Client, path string, code int, text string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	for {
		got, body := b.ready(c, path)
		if got == code && strings.Contains(body, text) {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("%s: %d %q, want %d and %q", path, got, body, code, text)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// fill uses all space on the volume except the store's reserve.
//
// Scenario:
//
//	t1: the disk is being filled. The store finds no space and frees its reserve.
//	t2: filling continues, and uses the space of the reserve.
//
// Result: the store has no space for deletions. fill therefore retries if the reserve is gone at the end.
func (b *onDisk) fill(v *volume, c *http.Client) {
	b.t.Helper()
	for {
		b.reports(c, "/readyz", http.StatusOK, "ok\n")
		v.fill()
		_, err := os.Stat(v.Path("store/RESERVE"))
		if err == nil {
			return
		}
		if !errors.Is(err, os.ErrNotExist) {
			b.t.Fatal(err)
		}
		v.empty()
	}
}

// client returns a client with one connection that stays open.
func client(t *testing.T) *http.Client {
	c := &http.Client{Timeout: patience, Transport: &http.Transport{}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// TestDisk_Full: a broker on a full disk accepts deletions and starts. It accepts all writes when there is
// space again, without help. All acknowledged data is present.
func TestDisk_Full(t *testing.T) {
	v, c := newVolume(t), client(t)
	b := v.start()
	b.must(codec.OutcomeAccepted, "kept", 1, false)
	b.must(codec.OutcomeAccepted, "deleted", 1, false)
	b.fill(v, c)
	b.eventually("nearly full")
	b.must(codec.OutcomeConfirmed, "deleted", 2, true)
	b.reports(c, "/readyz", http.StatusOK, "low on disk space")
	v.empty()
	b.eventually("")
	b.end(syscall.SIGKILL)

	v.fill()
	b = v.start()
	if b.source == nil {
		t.Fatalf("it does not start on a full disk: %s", b.end(syscall.SIGKILL))
	}
	v.fill() // also uses the space of the previous log
	b.eventually("nearly full")
	v.empty()
	b.eventually("")
	b.must(codec.OutcomeUnchanged, "kept", 1, false)
	b.must(codec.OutcomeConfirmed, "deleted", 2, true)
	b.reports(c, "/readyz", http.StatusOK, "ok\n")
	if _, err := os.Stat(v.Path("store/RESERVE")); err != nil {
		t.Errorf("the reserve is not there again: %v", err)
	}
	if log := b.end(syscall.SIGTERM); !strings.Contains(log, "deleted its reserve") {
		t.Errorf("the disk was not full: %s", log)
	}
}

// TestDisk_NoFileDescriptor: a broker that can open no file refuses publishes until it can.
func TestDisk_NoFileDescriptor(t *testing.T) {
	v, c := newVolume(t), client(t)
	b := v.start()
	b.must(codec.OutcomeAccepted, "kept", 1, false)
	b.reports(c, "/readyz", http.StatusOK, "ok\n")
	limit := func(n string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "prlimit", "--pid", fmt.Sprint(b.cmd.Process.Pid), "--nofile="+n+":").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	backup := b.backup()
	limit("3") // the process has these three open
	sent := backup()
	b.eventually("no file descriptor")
	b.reports(c, "/readyz", http.StatusServiceUnavailable, "too many open files")
	b.reports(c, "/livez", http.StatusOK, "ok")
	limit("1024")
	b.eventually("")
	if err := <-sent; err != nil {
		t.Errorf("the backup: %v", err)
	}
	b.must(codec.OutcomeUnchanged, "kept", 1, false)
	b.reports(c, "/readyz", http.StatusOK, "ok\n")
	b.end(syscall.SIGTERM)
}

// TestDisk_ReadOnly: a broker on a disk that became read-only ends with the reason. It has all data when the
// disk is writable again.
func TestDisk_ReadOnly(t *testing.T) {
	v := newVolume(t)
	b := v.start()
	b.must(codec.OutcomeAccepted, "kept", 1, false)
	b.end(syscall.SIGKILL)
	mount := func(as string) {
		t.Helper()
		if out, err := v.Command(t.Context(), "mount", "-o", "remount,"+as, v.Dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	mount("ro")
	b = v.start()
	if log := b.end(syscall.SIGTERM); b.source != nil || !strings.Contains(log, "read-only file system") {
		t.Errorf("on a read-only disk the log is %s", log)
	}
	mount("rw")
	b = v.start()
	b.must(codec.OutcomeUnchanged, "kept", 1, false)
	b.end(syscall.SIGTERM)
}
