package agent

import (
	"context"
	"errors"
	"maps"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// A cluster whose etcd was restored from a backup has another history. Everything read of it before is invalid.
// A uid with a generation or a resourceVersion may now belong to another state. So every object is read again.
// The hashes of correct objects stay valid: they name objects by uid and content.

// OwnWrite is an object that only this process writes, besides the AppliedManifestWorks.
type OwnWrite interface {
	// ReadBack checks whether the cluster has the object as it was last written. If not, Agent.EndHistory is called
	// before it returns.
	ReadBack(ctx context.Context) error
	// Forget drops the last write, until the next one.
	Forget()
}

// EndHistory handles a cluster with another history than before. reason is the evidence.
func (a *Agent) EndHistory(reason string) {
	present, _ := a.history.Present()
	a.history.End(present, reason)
}

// readBack checks whether the cluster has the agent's last write.
func (a *Agent) readBack(ctx context.Context) error {
	present, _ := a.history.Present()
	if a.config.Lease != nil {
		if err := a.config.Lease.ReadBack(ctx); err != nil && !apierrors.IsForbidden(err) {
			return err
		}
	}
	reason, err := a.core.ReadBack(ctx)
	if reason != "" {
		a.history.End(present, reason)
	}
	return err
}

// historyEnded forgets everything read of the former history.
func (a *Agent) historyEnded() {
	if a.config.Lease != nil {
		a.config.Lease.Forget()
	}
	if k, ok := a.config.Client.(interface{ ForgetKinds() }); ok {
		k.ForgetKinds()
	}
	a.core.AnotherHistory()
}

// AnotherHistory handles a cluster with another history than before: all works are reconciled again, and
// everything read before is forgotten.
func (c *Core) AnotherHistory() {
	c.lastRecord.forget("")
	c.mu.Lock()
	c.history++
	keys := map[string]bool{}
	for _, name := range c.set.Names() {
		keys[c.keyOf(name)] = true
	}
	for key := range c.states {
		keys[key] = true
	}
	for key := range maps.Keys(c.orphans.found) {
		keys[key] = true
	}
	c.mu.Unlock()
	for _, key := range sorted(keys) {
		c.config.Wake(key, true)
	}
}

// ReadBack reads the AppliedManifestWork that was written last. reason is why the cluster has another history,
// "" if the read does not show one.
func (c *Core) ReadBack(ctx context.Context) (reason string, err error) {
	name, after := c.lastRecord.wrote()
	if name == "" {
		return "", nil
	}
	rec, err := c.store.Load(ctx, name)
	switch {
	case apierrors.IsForbidden(err):
		return "", nil
	case err != nil && !errors.As(err, new(*kubeclient.NotServedError)):
		return "", err
	}
	if after.Compare(writeOf(rec)) == history.Nothing || !c.lastRecord.still(after) {
		return "", nil
	}
	return "AppliedManifestWork " + name + " is not as it was written last", nil
}

// lastRecord has the state of the AppliedManifestWork that was written last.
type lastRecord struct {
	mu   sync.Mutex
	name string
	last history.Write
}

func writeOf(rec *appliedwork.Record) history.Write {
	if rec == nil {
		return history.Write{}
	}
	return history.Write{UID: rec.Metadata().GetUID(), ResourceVersion: rec.Metadata().GetResourceVersion()}
}

// note records a write. The write that removes the last finalizer is skipped: the object is then gone.
func (l *lastRecord) note(rec *appliedwork.Record) {
	if rec.Deleting() && len(rec.Metadata().GetFinalizers()) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.name, l.last = rec.Metadata().GetName(), writeOf(rec)
}

// forget drops the last write if it has this name; "" drops any. It is called before the object may be removed.
func (l *lastRecord) forget(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if name == "" || name == l.name {
		l.name, l.last = "", history.Write{}
	}
}

func (l *lastRecord) wrote() (name string, last history.Write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.name, l.last
}

// still reports whether w is still the last write. If not, a later read proves nothing about w.
func (l *lastRecord) still(w history.Write) bool {
	_, last := l.wrote()
	return last == w
}
