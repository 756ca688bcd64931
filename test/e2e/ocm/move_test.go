package ocm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/testkit"
)

// TestMove: a klusterlet moves from OCM's gRPC server to Hawser and back. Each move is one update of its
// bootstrap Secret and an approval. The objects of its works stay on the cluster.
func TestMove(t *testing.T) {
	r := newRig(t)
	h, ocmAddr := r.hawser(), r.grpcServer()
	k := joined(r, "cluster1", ocmAddr)
	before := k.object("first")
	k.moves("hawser", h.addr, r.token("--audience=hawser"))
	k.records(recordOf(ocmAddr), recordOf(h.addr)) // the work agent has connected to the other hub
	k.delivers("first", "over Hawser")
	k.moves("ocm", ocmAddr, r.token())
	k.delivers("first", "back at OCM")
	if after := k.object("first"); after.UID != before.UID {
		t.Errorf("the work's object was created again: uid %s, was %s", after.UID, before.UID)
	}
	k.records(recordOf(ocmAddr))
	if after := k.object("first"); after.UID != before.UID {
		t.Errorf("after the grace period the object was created again: uid %s, was %s", after.UID, before.UID)
	}
	works := r.hub.works.WorkV1().ManifestWorks(k.name)
	if err := works.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually(func(ctx context.Context) error {
		_, err := works.Get(ctx, "first", metav1.GetOptions{})
		if err == nil {
			return errors.New("the work is still there")
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// TestMoveFromKube: a klusterlet that reaches the hub's kube-apiserver moves to Hawser and back. The steps are
// the same. In addition the Klusterlet's authType changes, by which OCM's operator gives the agents other
// arguments.
func TestMoveFromKube(t *testing.T) {
	r := newRig(t)
	h := r.hawser()
	k := &klusterlet{rig: r, name: "cluster1", bootstrap: filepath.Join(r.dir, "cluster1", "bootstrap"), home: filepath.Join(r.dir, "cluster1", "hub-kubeconfig")}
	kubeconfig, err := os.ReadFile(r.kubeconfigOf("open-cluster-management", bootstrapper))
	if err == nil {
		err = os.MkdirAll(k.home, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.write("cluster1/bootstrap/kubeconfig", string(kubeconfig))
	k.sendToAgent("kube")
	k.registration = r.program("cluster1-registration", "registration agent", registrationEnv, k.registrationArgs(false)...)
	k.sendsRequests()
	k.accept()
	k.certified()
	k.work = r.program("cluster1-work", "work agent", nil, k.workArgs(false)...)
	k.delivers("first", "1")
	before, direct := k.object("first"), k.recordNames()

	k.pointAt("hawser", h.addr, r.token("--audience=hawser"))
	k.registration.becomes(append([]string{"registration", "agent"}, k.registrationArgs(true)...))
	k.work.becomes(append([]string{"work", "agent"}, k.workArgs(true)...))
	k.eventually(func(context.Context) error {
		k.accept()
		return k.output("config.yaml", h.addr)
	})
	k.hasRecord(recordOf(h.addr))
	k.delivers("first", "over Hawser")
	k.records(recordOf(h.addr))
	if after := k.object("first"); after.UID != before.UID {
		t.Errorf("the work's object was created again: uid %s, was %s", after.UID, before.UID)
	}

	// The hub has another name in this kubeconfig than in the one for Hawser.
	hub, err := r.hub.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	r.write("cluster1/bootstrap/kubeconfig", string(kubeconfig))
	k.sendToAgent("kube again")
	k.registration.becomes(append([]string{"registration", "agent"}, k.registrationArgs(false)...))
	k.work.becomes(append([]string{"work", "agent"}, k.workArgs(false)...))
	k.eventually(func(context.Context) error {
		k.accept()
		return k.output("kubeconfig", hub.Host)
	})
	k.hasRecord(direct[0])
	k.delivers("first", "back at the kube-apiserver")
	k.records(direct...)
	if after := k.object("first"); after.UID != before.UID {
		t.Errorf("on the way back the work's object was created again: uid %s, was %s", after.UID, before.UID)
	}
}

// becomes restarts the program with other arguments, at a new address.
func (p *supervised) becomes(args []string) {
	p.r.Helper()
	p.end()
	p.spec.Args = append(args, "--listen="+testkit.FreeAddr(p.r.T))
	p.start()
}

// hasRecord waits for an AppliedManifestWork.
func (k *klusterlet) hasRecord(name string) {
	k.Helper()
	k.eventually(func(ctx context.Context) error {
		_, err := k.spoke.works.WorkV1().AppliedManifestWorks().Get(ctx, name, metav1.GetOptions{})
		return err
	})
}

// moves updates the bootstrap Secret and approves the next request. hub must be a new name of the hub.
func (k *klusterlet) moves(hub, endpoint, token string) {
	k.Helper()
	k.pointAt(hub, endpoint, token)
	k.eventually(func(context.Context) error {
		k.accept()
		return k.output("config.yaml", endpoint)
	})
}

// object returns the ConfigMap of a work.
func (k *klusterlet) object(name string) *corev1.ConfigMap {
	k.Helper()
	m, err := k.spoke.kube.CoreV1().ConfigMaps("default").Get(k.Context(), name, metav1.GetOptions{})
	if err != nil {
		k.Fatal(err)
	}
	return m
}

// recordOf returns the name of the work's AppliedManifestWork. A work agent identifies its hub by the address.
func recordOf(endpoint string) string {
	return fmt.Sprintf("%x-first", sha256.Sum256([]byte(endpoint)))
}

// records waits until the cluster has exactly these AppliedManifestWorks. Those of the former hub disappear
// after the grace period.
func (k *klusterlet) records(want ...string) {
	k.Helper()
	slices.Sort(want)
	k.eventually(func(context.Context) error {
		if have := k.recordNames(); !slices.Equal(have, want) {
			return fmt.Errorf("AppliedManifestWorks %q, want %q", have, want)
		}
		return nil
	})
}

// recordNames returns the names of the AppliedManifestWorks on the cluster, sorted.
func (k *klusterlet) recordNames() (names []string) {
	k.Helper()
	l, err := k.spoke.works.WorkV1().AppliedManifestWorks().List(k.Context(), metav1.ListOptions{})
	if err != nil {
		k.Fatal(err)
	}
	for i := range l.Items {
		names = append(names, l.Items[i].Name)
	}
	slices.Sort(names)
	return names
}

// output returns nil once a file of the Secret with the hub's certificate contains text.
func (k *klusterlet) output(file, text string) error {
	b, err := os.ReadFile(filepath.Join(k.home, filepath.Base(file)))
	if err == nil && !strings.Contains(string(b), text) {
		err = fmt.Errorf("%s does not contain %s", file, text)
	}
	return err
}
