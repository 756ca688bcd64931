package leader

import (
	"context"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/hawser-io/hawser/internal/history"
)

// Memory keeps the last write of this process to its Lease. Only the leader writes it, and repeatedly, so a
// server without the last write has another history.
//
// Scenario:
//
//	t1: the server is stopped, and restored from a backup.
//	t2: other clients write to it until its position is later than all that were seen.
//	t3: the elector renews the Lease under the condition that it is as last written. The server refuses, and
//	the elector reads an older Lease.
//
// Result: the older Lease shows the restore, although the position does not.
type Memory struct {
	coordinationclient.LeasesGetter
	namespace, name string
	// lost is called with the evidence of the Lease, once for each write.
	lost func(history.Evidence)

	mu   sync.Mutex
	last history.Write
}

// Remember returns a Memory of the Lease with that name. lost must not block.
func Remember(leases coordinationclient.LeasesGetter, namespace, name string, lost func(history.Evidence)) *Memory {
	return &Memory{LeasesGetter: leases, namespace: namespace, name: name, lost: lost}
}

// Leases implements LeasesGetter.
func (m *Memory) Leases(namespace string) coordinationclient.LeaseInterface {
	return remembered{m.LeasesGetter.Leases(namespace), m}
}

// ReadBack checks whether the server has the last write. It sends no request if there was no write.
func (m *Memory) ReadBack(ctx context.Context) error {
	if m.wrote() == (history.Write{}) {
		return nil
	}
	_, err := m.Leases(m.namespace).Get(ctx, m.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // Get has called lost
	}
	return err
}

func (m *Memory) wrote() history.Write {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// Forget drops the last write: it belongs to a former history.
func (m *Memory) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = history.Write{}
}

// note stores a successful write.
func (m *Memory) note(l *coordinationv1.Lease, err error) (*coordinationv1.Lease, error) {
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.last = history.Write{UID: l.UID, ResourceVersion: l.ResourceVersion}
	}
	return l, err
}

// read compares the Lease, as it was read, with the write after.
func (m *Memory) read(after, live history.Write) {
	e := after.Compare(live)
	m.mu.Lock()
	if e == history.Nothing || m.last != after {
		m.mu.Unlock()
		return
	}
	m.last = history.Write{}
	m.mu.Unlock()
	m.lost(e)
}

// remembered is a client of the Leases of a namespace that records writes.
type remembered struct {
	coordinationclient.LeaseInterface
	memory *Memory
}

func (r remembered) Create(ctx context.Context, l *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return r.memory.note(r.LeaseInterface.Create(ctx, l, o))
}

func (r remembered) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return r.memory.note(r.LeaseInterface.Update(ctx, l, o))
}

func (r remembered) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	after := r.memory.wrote()
	l, err := r.LeaseInterface.Get(ctx, name, o)
	switch {
	case err == nil:
		r.memory.read(after, history.Write{UID: l.UID, ResourceVersion: l.ResourceVersion})
	case apierrors.IsNotFound(err):
		r.memory.read(after, history.Write{})
	}
	return l, err
}
