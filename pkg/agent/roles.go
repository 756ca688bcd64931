package agent

import (
	"context"
	"log/slog"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/pkg/agent/drift"
)

// roleWatch watches roles and bindings, from when somebody needs it. It keeps
// nothing of them: any change may concern any executor, by whatever group it is
// bound.
type roleWatch struct {
	watcher *drift.Watcher
	needed  chan struct{} // closed when somebody does
	need    func()
}

func newRoleWatch(source func(drift.Scope) drift.Source, changed func(), log *slog.Logger) *roleWatch {
	all := drift.Standing{
		Seen:   func(*metav1.PartialObjectMetadata) (string, bool) { changed(); return "", false },
		Gone:   func(string) { changed() },
		Unsure: changed,
	}
	standing := map[schema.GroupVersionResource]drift.Standing{}
	for _, resource := range []string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"} {
		standing[rbacv1.SchemeGroupVersion.WithResource(resource)] = all
	}
	w := &roleWatch{needed: make(chan struct{})}
	w.need = sync.OnceFunc(func() { close(w.needed) })
	w.watcher = drift.New(drift.Config{Source: source, Changed: func(string) {}, Standing: standing, Log: log})
	return w
}

// Need implements Roles.
func (w *roleWatch) Need() { w.need() }

// Watched implements Roles.
func (w *roleWatch) Watched() bool { return w.watcher.Ready() == nil }

// Run watches, once that is needed, until ctx ends.
func (w *roleWatch) Run(ctx context.Context) error {
	select {
	case <-w.needed:
		return w.watcher.Run(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counts are those of the Watcher, nothing before anybody needs it.
func (w *roleWatch) counts() (n drift.Counts) {
	select {
	case <-w.needed:
		return w.watcher.Counts()
	default:
		return n
	}
}
