package drift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// players do in this test what a work's reconciliations do with a Watcher: track, read, report the read state.
// They repeat that when woken, and periodically if unwatched.
type players struct {
	*api
	*Watcher
	max     int
	wants   map[string]map[kubeclient.Ref]bool
	read    map[string]map[kubeclient.Ref]Signature
	due     chan string
	problem string
}

const (
	modelOwners     = 6
	modelNamespaces = 14
	// modelRead is the time in which an owner reads its objects.
	modelRead = 30 * time.Millisecond
)

var modelKinds = []schema.GroupVersionResource{configMaps, secrets, {Group: "example.com", Version: "v1", Resource: "ropes"}}

// step is one random action.
type step struct {
	what  int
	owner string
	refs  []kubeclient.Ref
	scope Scope
	on    bool
	wait  time.Duration
}

var steps = rapid.Custom(func(t *rapid.T) step {
	kind := rapid.SampledFrom(modelKinds)
	namespace := rapid.Custom(func(t *rapid.T) string {
		return fmt.Sprintf("n%02d", rapid.IntRange(1, modelNamespaces).Draw(t, "namespace"))
	})
	ref := rapid.Custom(func(t *rapid.T) kubeclient.Ref {
		return kubeclient.Ref{GroupVersionResource: kind.Draw(t, "kind"), Namespace: namespace.Draw(t, "in"), Name: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "name")}
	})
	s := step{
		what: rapid.IntRange(0, 9).Draw(t, "what"), owner: fmt.Sprint("w", rapid.IntRange(1, modelOwners).Draw(t, "owner")),
		refs: rapid.SliceOfN(ref, 1, 8).Draw(t, "refs"), on: rapid.Bool().Draw(t, "on"),
		wait: time.Duration(rapid.SampledFrom([]int{0, 0, 1, 20, 100, 700, 5000, 90_000}).Draw(t, "wait")) * time.Millisecond,
	}
	s.scope.GroupVersionResource = kind.Draw(t, "scope")
	if rapid.Bool().Draw(t, "in one namespace") {
		s.scope.Namespace = namespace.Draw(t, "of")
	}
	return s
})

func (p *players) do(s step) {
	switch s.what {
	case 0, 1, 2:
		refs := map[kubeclient.Ref]bool{}
		for _, r := range s.refs {
			refs[r] = true
		}
		if s.what == 0 { // adds to the tracked objects
			maps.Copy(refs, p.wants[s.owner])
		}
		p.wants[s.owner] = refs
		p.due <- s.owner
	case 3:
		p.wants[s.owner] = nil
		p.due <- s.owner
	case 4, 5:
		for _, r := range s.refs {
			p.put(r)
		}
	case 6:
		for _, r := range s.refs {
			p.remove(r)
		}
	case 7:
		p.cut(s.on)
	case 8:
		p.forbid(s.scope, s.on)
	case 9:
		p.fail(s.on)
	}
	<-time.After(s.wait)
}

// reconcile does what a woken owner does: it reads its objects and tracks their states.
func (p *players) reconcile(owner string) {
	wants, read := p.wants[owner], p.read[owner]
	expected := map[kubeclient.Ref]Signature{}
	for ref := range wants {
		expected[ref] = Unknown
		if s, has := read[ref]; has {
			expected[ref] = s
		}
	}
	p.Track(owner, expected)
	<-time.After(modelRead)
	next := map[kubeclient.Ref]Signature{}
	for ref := range wants {
		next[ref] = p.state(ref).Content
	}
	<-time.After(modelRead)
	p.read[owner] = next
	p.Track(owner, next)
	if n := p.Counts(); n.Watches > p.max {
		p.problem = fmt.Sprintf("%d watches, at most %d are allowed", n.Watches, p.max)
	}
}

// play runs the steps, and then a time without changes.
func play(t *testing.T, maxWatches, page int, lag []time.Duration, program []step) string {
	problem := ""
	synctest.Test(t, func(t *testing.T) {
		p := &players{
			api: newAPI(), max: maxWatches, wants: map[string]map[kubeclient.Ref]bool{}, read: map[string]map[kubeclient.Ref]Signature{},
			due: make(chan string, 1000),
		}
		p.page = page
		p.lag = func(s Scope) time.Duration { return lag[len(s.Namespace)%len(lag)] }
		p.Watcher = New(Config{
			Source: p.source, Changed: func(owner string) { p.due <- owner }, MaxWatches: maxWatches, Log: slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		for _, s := range program {
			p.do(s)
			p.runUntilIdle()
		}
		p.fail(false)
		// The time exceeds every wait after a denial or failure.
		for end := time.Now().Add(2 * wideDeniedRetry); time.Now().Before(end); {
			<-time.After(time.Minute)
			p.runUntilIdle()
		}
		p.check()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			p.problem = fmt.Sprintf("Run: %v", err)
		}
		synctest.Wait()
		if n := p.open(); n != 0 {
			p.problem = fmt.Sprintf("%d watches are still open", n)
		}
		problem = p.problem
	})
	return problem
}

// runUntilIdle reconciles the woken owners until none is woken. Owners without a watch are always reconciled.
func (p *players) runUntilIdle() {
	for {
		synctest.Wait()
		woken := map[string]bool{}
		for len(p.due) > 0 {
			woken[<-p.due] = true
		}
		if len(woken) == 0 {
			return
		}
		for _, owner := range slices.Sorted(maps.Keys(woken)) {
			p.reconcile(owner)
		}
	}
}

// check is called after a long time without changes: every owner knows the state of its objects, or that they
// are unwatched.
func (p *players) check() {
	synctest.Wait()
	objects := 0
	for owner, wants := range p.wants {
		unwatched := p.Unwatched(owner) > 0
		for ref := range wants {
			objects++
			now := p.state(ref)
			seen, ok := p.LastSeen(ref)
			switch {
			case ok && !seen.Is(now.Content):
				p.problem = fmt.Sprintf("%v is seen as %q, and is %q", ref, seen, now)
			case !ok && !unwatched && !p.tracksUnknown(ref):
				p.problem = fmt.Sprintf("%v is not seen, and %s does not know that it has to look", ref, owner)
			case !unwatched && p.read[owner][ref] != now.Content:
				p.problem = fmt.Sprintf("%s was not woken for %v: it takes it for %q, and it is %q", owner, ref, p.read[owner][ref], now)
			}
		}
	}
	n := p.Counts()
	if n.Watches > p.max || p.open() != n.Watches-n.Denied-p.wideDenied() {
		p.problem = fmt.Sprintf("%d watches are open, at most %d are allowed, counted %+v", p.open(), p.max, n)
	}
	if objects == 0 && n != (Counts{}) {
		p.problem = fmt.Sprintf("nothing is tracked, and there are %+v", n)
	}
}

// tracksUnknown reports whether an object was first tracked after the list, and has not changed since its owner
// read it in another state.
func (p *players) tracksUnknown(ref kubeclient.Ref) bool {
	p.Watcher.mu.Lock()
	defer p.Watcher.mu.Unlock()
	s, o := p.find(ref)
	f := s.cover()
	return o != nil && !o.known && f != nil && f.synced
}

// wideDenied counts the watches of all namespaces that do not lead.
func (p *players) wideDenied() (n int) {
	p.Watcher.mu.Lock()
	defer p.Watcher.mu.Unlock()
	for _, k := range p.kinds {
		if k.wide != nil && !k.wide.leads {
			n++
		}
	}
	return n
}

// For any changes on the cluster and any available watches, no owner misses a change, and the bound holds.
func TestWatcher_Model(t *testing.T) {
	for range 10 { // a run takes less than a millisecond
		rapid.Check(t, func(rt *rapid.T) {
			lag := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, time.Millisecond, 50 * time.Millisecond, 2 * time.Second}), 4, 4).Draw(rt, "lag")
			maxWatches := rapid.SampledFrom([]int{3, 10, 20, 200}).Draw(rt, "most watches")
			page := rapid.SampledFrom([]int{1, 2, 500}).Draw(rt, "page")
			program := rapid.SliceOfN(steps, 1, 40).Draw(rt, "program")
			if problem := play(t, maxWatches, page, lag, program); problem != "" {
				rt.Fatal(problem)
			}
		})
	}
}
