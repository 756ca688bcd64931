package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typed "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/leader"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/hubidentity"
	"github.com/hawser-io/hawser/pkg/agent/journal"
)

func TestOwnNamespace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "namespace")
	c := defaults()
	if _, err := c.ownNamespace(file); err == nil || !strings.Contains(err.Error(), "namespace is empty") {
		t.Errorf("outside of a pod: %v", err)
	}
	if err := os.WriteFile(file, []byte("pods\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := c.ownNamespace(file); err != nil || got != "pods" {
		t.Errorf("in a pod: %q, %v", got, err)
	}
	c.namespace = "given"
	if got, err := c.ownNamespace(file); err != nil || got != "given" {
		t.Errorf("with a flag: %q, %v", got, err)
	}
}

// Processes with the same state directory have the same identity. A process without one has its own identity.
func TestLease_Identity(t *testing.T) {
	c := defaults()
	c.namespace, c.stateDir = "hawser", t.TempDir()
	log := slog.New(slog.DiscardHandler)
	identity := func() string {
		t.Helper()
		j, err := c.openJournal(log)
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.newLease(&rest.Config{Host: "https://127.0.0.1:1"}, "hawser", "hub", j, log)
		if err != nil {
			t.Fatal(err)
		}
		if j != nil {
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if e := l.election; e.Namespace != "hawser" || e.Name != hubidentity.LeaseName(appliedwork.HubHash("hub"), "") || e.Duration != 137*time.Second {
			t.Errorf("got %+v", e)
		}
		return l.election.Identity
	}
	if first, second := identity(), identity(); first != second || first == "" {
		t.Errorf("one directory: %q, then %q", first, second)
	}
	c.stateDir = ""
	if first, second := identity(), identity(); first == second {
		t.Errorf("no directory: %q twice", first)
	}
}

func TestLease_SwitchedOff(t *testing.T) {
	c := defaults()
	c.noLeaderElection = true
	l, err := c.newLease(&rest.Config{}, "hawser", "hub", nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	worked := errors.New("worked")
	if err := l.ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	if err := l.lead(t.Context(), func(context.Context) error { return worked }); !errors.Is(err, worked) {
		t.Errorf("got %v", err)
	}
	if err := l.unlessStandby(func() error { return worked })(); !errors.Is(err, worked) {
		t.Errorf("the check was not made: %v", err)
	}
}

// leases returns scripted answers.
type leases struct {
	typed.LeaseInterface

	holder string
	err    func() error
}

func (l *leases) Leases(string) typed.LeaseInterface { return l }

func (l *leases) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := l.err(); err != nil {
		return nil, err
	}
	seconds := int32(137)
	return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &l.holder, LeaseDurationSeconds: &seconds}}, nil
}

func (l *leases) Update(_ context.Context, u *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	l.holder = *u.Spec.HolderIdentity
	return u, l.err()
}

func testLease(on *leases) *lease {
	return &lease{log: slog.New(slog.DiscardHandler), election: leader.Election{
		Leases: on, Namespace: "ns", Name: "name", Identity: "me",
		Duration: 137 * time.Second, RenewDeadline: 107 * time.Second, RetryPeriod: 26 * time.Second,
	}}
}

func TestLease_Forbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "name", errors.New("no role"))
		began := time.Now()
		err := testLease(&leases{err: func() error { return forbidden }}).lead(t.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), "deploy/agent/rbac.yaml") || time.Since(began) < patience {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestLease_StandbyIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		on := &leases{holder: "another", err: func() error { return nil }}
		l := testLease(on)
		broken := l.unlessStandby(func() error { return errors.New("broken") })
		if l.ready() == nil || broken() == nil {
			t.Error("ready before the active agent is known")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- l.lead(ctx, func(context.Context) error { return errors.New("worked beside another") })
		}()
		synctest.Wait()
		if err := errors.Join(l.ready(), broken()); err != nil {
			t.Errorf("standing by: %v", err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestLease_WaitsForACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := testLease(&leases{holder: "me", err: func() error {
			if time.Since(began) < time.Hour {
				return errors.New("connection refused")
			}
			return nil
		}})
		worked := errors.New("worked")
		if err := l.lead(t.Context(), func(context.Context) error { synctest.Wait(); return worked }); !errors.Is(err, worked) {
			t.Errorf("got %v", err)
		}
		if err := l.ready(); err != nil {
			t.Errorf("the one that has the Lease: %v", err)
		}
		if err := l.unlessStandby(func() error { return worked })(); !errors.Is(err, worked) {
			t.Errorf("the active agent's check was not made: %v", err)
		}
	})
}

// The state directory of a running agent is rejected by name, before any request to the cluster.
func TestServe_StateDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(journal.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	c := serveConfig(t)
	c.stateDir = dir
	if err := serve(t.Context(), c, io.Discard); err == nil || !strings.Contains(err.Error(), dir+" is in use") {
		t.Errorf("got %v", err)
	}
}

// After serve has ended, another process can use the directory.
func TestServe_GivesTheStateDirectoryBack(t *testing.T) {
	c := serveConfig(t)
	c.stateDir, c.noLeaderElection, c.output.AdminListen = t.TempDir(), true, ""
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var log bytes.Buffer
	if err := serve(ctx, c, &log); err != nil {
		t.Fatalf("got %v\n%s", err, &log)
	}
	j, err := journal.Open(journal.Config{Dir: c.stateDir})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// serveConfig starts an agent whose cluster and broker are unreachable.
func serveConfig(t *testing.T) *config {
	t.Helper()
	dir := t.TempDir()
	c := defaults()
	c.clusterName, c.insecure, c.namespace = "c1", true, "hawser"
	c.sourceConfig, c.spokeKubeconfig = filepath.Join(dir, "driver.yaml"), filepath.Join(dir, "kubeconfig")
	for path, text := range map[string]string{
		c.sourceConfig:    "url: 127.0.0.1:1\n",
		c.spokeKubeconfig: `{"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"x","context":{"cluster":"c"}}],"current-context":"x"}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}
