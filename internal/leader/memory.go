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

// Memory knows how this process wrote its Lease last. A leader writes it again and again, and
// alone, so a server that does not have the last write has another history:
//
//	t1 The server is stopped, and restored from a backup.
//	t2 It is written to, until its position is later than any that was seen.
//	t3 The elector renews the Lease on the condition that it is as it wrote it, is refused, and
//	   reads an older one.
type Memory struct {
	coordinationclient.LeasesGetter
	namespace, name string
	// lost is told what the Lease says, once for each write.
	lost func(history.Evidence)

	mu   sync.Mutex
	last history.Write
}

// Remember returns a Memory of the Lease of that name. lost must not block.
func Remember(leases coordinationclient.LeasesGetter, namespace, name string, lost func(history.Evidence)) *Memory {
	return &Memory{LeasesGetter: leases, namespace: namespace, name: name, lost: lost}
}

// Leases implements LeasesGetter.
func (m *Memory) Leases(namespace string) coordinationclient.LeaseInterface {
	return remembered{m.LeasesGetter.Leases(namespace), m}
}

// ReadBack looks whether the server has the last write. It asks nothing while there is none.
func (m *Memory) ReadBack(ctx context.Context) error {
	if m.wrote() == (history.Write{}) {
		return nil
	}
	_, err := m.Leases(m.namespace).Get(ctx, m.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // Get told
	}
	return err
}

func (m *Memory) wrote() history.Write {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// Forget drops the last write: it is of a former history.
func (m *Memory) Forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = history.Write{}
}

// note notes a write.
func (m *Memory) note(l *coordinationv1.Lease, err error) (*coordinationv1.Lease, error) {
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.last = history.Write{UID: l.UID, ResourceVersion: l.ResourceVersion}
	}
	return l, err
}

// read takes the Lease as it was read after a write.
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

// remembered are the Leases of a namespace.
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
