package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/local/fleet"
	"github.com/hawser-io/hawser/test/consistency"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// steadyWorks is the number of works on each cluster that exist during all outages.
const steadyWorks = 50

// load is shared by all outages: works with counters, and a watch on both clusters. The watch also runs between
// scenarios.
type load struct {
	*consistency.Works
	steady []consistency.Key

	stop    context.CancelFunc
	watches sync.WaitGroup
	// failed is the first failed scenario. Later scenarios would fail too, after long waits, because of the
	// state that it left.
	failed string
}

// outage returns the load for one scenario. The scenario fails if the history has a complaint at its end.
func (f *Fleet) outage(t *testing.T) *load {
	t.Helper()
	if f.load == nil {
		f.startLoad(t)
	}
	l := f.load
	if l.failed != "" {
		t.Fatalf("%s failed and may have left anything: run this alone", l.failed)
	}
	t.Cleanup(func() {
		for _, c := range l.History.Complaints() {
			t.Errorf("broken promise: %s", c)
		}
		if t.Failed() {
			l.failed = t.Name()
		}
	})
	return l
}

// startLoad creates the steady works and starts the watches.
func (f *Fleet) startLoad(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop, Works: &consistency.Works{
		Hub: f.HubAPI.Work, Clusters: map[string]consistency.Cluster{}, Namespace: "outages", History: consistency.NewHistory(time.Now),
	}}
	for name, c := range f.API {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: l.Namespace}}
		if _, err := c.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		l.Clusters[name] = consistency.Cluster{Kube: c.Kube, Work: c.Work}
		w := consistency.Watch{Cluster: name, Client: c.Kube, Namespace: l.Namespace, History: l.History}
		l.watches.Go(func() { w.Run(ctx) })
		for i := range steadyWorks {
			l.steady = append(l.steady, consistency.Key{Cluster: name, Name: fmt.Sprintf("steady-%02d", i)})
		}
	}
	f.load = l
	l.each(t, l.steady, l.Create)
	l.settled(t)
}

// endLoad ends the watches.
func (f *Fleet) endLoad() {
	if l := f.load; l != nil {
		l.stop()
		l.watches.Wait()
	}
}

// each writes works, several at a time.
func (l *load) each(t *testing.T, keys []consistency.Key, write func(context.Context, consistency.Key) error) {
	t.Helper()
	if err := consistency.Each(t.Context(), keys, write); err != nil {
		t.Fatal(err)
	}
}

// keys returns the keys of works with these names on both clusters.
func keys(names ...string) []consistency.Key {
	var all []consistency.Key
	for _, c := range []string{cluster1, cluster2} {
		for _, n := range names {
			all = append(all, consistency.Key{Cluster: c, Name: n})
		}
	}
	return all
}

// settled waits until hub and clusters agree, and the statuses on the hub are correct.
func (l *load) settled(t *testing.T) {
	t.Helper()
	began := time.Now()
	harness.EventuallyWithin(t, 2*time.Minute, l.Converged) // time for a hundred works and a back-off
	t.Logf("hub and clusters agree after %.1f s", time.Since(began).Seconds())
}

// duringUpdates updates every steady work rounds times, and continues until act has returned. It calls act when
// 50 updates have been applied.
func (l *load) duringUpdates(t *testing.T, rounds int, act func()) {
	t.Helper()
	base, _ := l.History.Progress()
	written := make(chan error, 1)
	var acted atomic.Bool
	defer acted.Store(true) // act may end the test
	go func() {
		for round := 0; round < rounds || !acted.Load(); round++ {
			if err := consistency.Each(t.Context(), l.steady, l.Update); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	l.progress(t, "50 updates to be applied", func(_, applied int64) bool { return applied-base >= enough })
	act()
	acted.Store(true)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

// enough is the number of applied updates, and of updates in flight, before a fault begins.
const enough = 50

// progress waits for a state of the updates, and returns the number of updates in flight then.
func (l *load) progress(t *testing.T, what string, until func(accepted, applied int64) bool) (underWay int64) {
	t.Helper()
	var accepted, applied int64
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, harness.ConvergeTimeout, true, func(context.Context) (bool, error) {
		accepted, applied = l.History.Progress()
		return until(accepted, applied), nil
	})
	if err != nil {
		t.Fatalf("waiting for %s: %d are accepted and %d applied: %v", what, accepted, applied, err)
	}
	return accepted - applied
}

// killDuringUpdates updates every steady work five times and kills a program in the middle. At that moment 50
// updates are applied, and 50 are in flight because the next programs hang. It calls meanwhile, and then starts
// the program again.
func (f *Fleet) killDuringUpdates(t *testing.T, l *load, program string, next []string, meanwhile func()) {
	t.Helper()
	const rounds = 5
	l.duringUpdates(t, rounds, func() {
		for _, n := range next {
			if err := f.Program(n).Pause(); err != nil {
				t.Fatal(err)
			}
		}
		underWay := l.progress(t, "50 updates to be under way", func(accepted, applied int64) bool { return accepted-applied >= enough })
		f.Program(program).Kill()
		meanwhile()
		for _, n := range next {
			if err := f.Program(n).Resume(); err != nil {
				t.Fatal(err)
			}
		}
		f.start(t, program)
		t.Logf("%s was killed with %d of %d updates under way", program, underWay, rounds*len(l.steady))
	})
}

// steadyOn returns the steady works of one cluster.
func (l *load) steadyOn(cluster string) []consistency.Key {
	return slices.DeleteFunc(slices.Clone(l.steady), func(k consistency.Key) bool { return k.Cluster != cluster })
}

// spoil changes a field of some objects of steady works, as another client does. The counters stay.
func (l *load) spoil(t *testing.T, cluster string) {
	t.Helper()
	typ, patch := harness.MergePatch(map[string]any{"data": map[string]string{consistency.FixedField: "spoiled"}})
	l.each(t, l.steadyOn(cluster)[:5], func(ctx context.Context, k consistency.Key) error {
		_, err := l.Clusters[cluster].Kube.CoreV1().ConfigMaps(l.Namespace).Patch(ctx, k.Name, typ, patch, metav1.PatchOptions{})
		return err
	})
}

// repaired waits until all changes of spoil are repaired.
func (l *load) repaired(t *testing.T, cluster string) {
	t.Helper()
	harness.Eventually(t, func(ctx context.Context) error {
		objects, err := l.Clusters[cluster].Kube.CoreV1().ConfigMaps(l.Namespace).List(ctx, metav1.ListOptions{LabelSelector: consistency.Label})
		if err != nil {
			return err
		}
		for _, o := range objects.Items {
			if o.Data[consistency.FixedField] != consistency.FixedValue {
				return fmt.Errorf("%s/%s is still %s", cluster, o.Name, o.Data[consistency.FixedField])
			}
		}
		return nil
	})
}

// hub is the name of the hub's control plane in the fleet.
const hub = "hub"

// broker returns the fleet's broker.
func (f *Fleet) broker() *fleet.Program { return f.Program(fleet.Broker) }

// start starts a program that was stopped or killed.
func (f *Fleet) start(t *testing.T, program string) {
	t.Helper()
	if err := f.Program(program).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// startLater starts a program at the end of the test unless it runs: other scenarios need it.
func (f *Fleet) startLater(t *testing.T, program string) {
	t.Cleanup(func() {
		if err := f.Program(program).Start(context.Background()); err != nil {
			t.Errorf("start %s again: %v", program, err)
		}
	})
}

// emptyDir removes everything in a directory.
func emptyDir(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

// hawser runs the program hawser.
func (f *Fleet) hawser(t *testing.T, args ...string) {
	t.Helper()
	if err := f.tryHawser(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

func (f *Fleet) tryHawser(ctx context.Context, args ...string) error {
	_, err := childproc.Run(ctx, filepath.Join(f.Root, "bin", "hawser"), args...)
	return err
}
