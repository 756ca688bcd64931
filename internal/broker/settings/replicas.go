package settings

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hawser-io/hawser/internal/taskgroup"
)

// replicasEvery is the interval at which the live replicas are read.
const replicasEvery = 2 * time.Second

// Replicas are the brokers that use the store, as the store reported them last.
type Replicas struct {
	cfg     *Config
	live    atomic.Pointer[[]string]
	others  atomic.Bool // there was another replica
	changed []func()
}

// NewReplicas returns the replicas of the store of c, which are unknown before Run.
func NewReplicas(c *Config) *Replicas {
	r := &Replicas{cfg: c}
	r.live.Store(new([]string))
	return r
}

// OnChange adds a function that is called after each change. Call it before Run.
func (r *Replicas) OnChange(f func()) { r.changed = append(r.changed, f) }

// Live returns the ids of the live replicas, that of this broker first. It is empty while they are unknown. The caller
// must not change it.
func (r *Replicas) Live() []string { return *r.live.Load() }

// Alone reports whether this broker is the only one.
func (r *Replicas) Alone() bool { return len(r.Live()) == 1 }

// HadOthers reports whether another replica was live at any time since this broker began.
func (r *Replicas) HadOthers() bool { return r.others.Load() }

// Run reads the replicas until ctx ends. While the store does not answer, the last ones stay.
func (r *Replicas) Run(ctx context.Context) error {
	for {
		if ids, err := r.cfg.Store.Replicas(ctx); err == nil {
			slices.Sort(ids[1:])
			if !slices.Equal(ids, r.Live()) {
				r.live.Store(&ids)
				if len(ids) > 1 {
					r.others.Store(true)
				}
				for _, f := range r.changed {
					f()
				}
			}
		}
		if !taskgroup.Sleep(ctx, replicasEvery) {
			return nil
		}
	}
}
