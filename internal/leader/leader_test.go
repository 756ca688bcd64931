package leader

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typed "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// apiserver holds one Lease. While it is unreachable, requests wait until their context ends.
type apiserver struct {
	typed.LeaseInterface

	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version int
	away    chan struct{} // not nil: requests wait until it is closed
	refuse  error         // not nil: the error of writes
	holders []string
}

func (a *apiserver) Leases(string) typed.LeaseInterface { return a }

func (a *apiserver) goAway() (back func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	away := make(chan struct{})
	a.away = away
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.away = nil
		close(away)
	}
}

func (a *apiserver) arrive(ctx context.Context) error {
	a.mu.Lock()
	away := a.away
	a.mu.Unlock()
	if away == nil {
		return nil
	}
	select {
	case <-away:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (a *apiserver) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := a.arrive(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lease == nil {
		return nil, apierrors.NewNotFound(leases, name)
	}
	return a.lease.DeepCopy(), nil
}

func (a *apiserver) Create(ctx context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	a.mu.Lock()
	absent := a.lease == nil
	a.mu.Unlock()
	return a.store(ctx, l, absent)
}

func (a *apiserver) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	a.mu.Lock()
	current := a.lease != nil && l.ResourceVersion == a.lease.ResourceVersion
	refuse := a.refuse
	a.mu.Unlock()
	if len(o.DryRun) > 0 && current {
		return l, refuse
	}
	return a.store(ctx, l, current)
}

func (a *apiserver) store(ctx context.Context, l *coordinationv1.Lease, ok bool) (*coordinationv1.Lease, error) {
	if err := a.arrive(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !ok {
		return nil, apierrors.NewConflict(leases, l.Name, errors.New("changed"))
	}
	if a.refuse != nil {
		return nil, a.refuse
	}
	a.version++
	a.lease = l.DeepCopy()
	a.lease.ResourceVersion = strconv.Itoa(a.version)
	holder := ""
	if l.Spec.HolderIdentity != nil {
		holder = *l.Spec.HolderIdentity
	}
	if len(a.holders) == 0 || a.holders[len(a.holders)-1] != holder {
		a.holders = append(a.holders, holder)
	}
	return a.lease.DeepCopy(), nil
}

func (a *apiserver) election(identity string) Election {
	return Election{
		Leases: a, Namespace: "ns", Name: "lease", Identity: identity,
		Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
	}
}

func noHolder(string) {}

// replica is a running Lead.
type replica struct {
	stop    context.CancelFunc
	working chan time.Time // when work began
	stopped chan time.Time // when its context ended
	ended   chan error
}

func (e Election) start(t *testing.T) *replica {
	ctx, stop := context.WithCancel(t.Context())
	r := &replica{stop: stop, working: make(chan time.Time, 1), stopped: make(chan time.Time, 1), ended: make(chan error, 1)}
	go func() {
		r.ended <- e.Lead(ctx, noHolder, func(ctx context.Context) error {
			r.working <- time.Now()
			<-ctx.Done()
			r.stopped <- time.Now()
			return ctx.Err()
		})
	}()
	return r
}

// end ends a replica cleanly.
func (r *replica) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.ended; !errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) {
		t.Errorf("stopped: %v", err)
	}
}

func TestLead_WithoutLeasesWorks(t *testing.T) {
	want := errors.New("done")
	if err := (Election{}).Lead(t.Context(), noHolder, func(context.Context) error { return want }); !errors.Is(err, want) {
		t.Fatalf("got %v", err)
	}
}

func TestLead_OneAtATimeAndReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		first := a.election("one").start(t)
		<-first.working
		second := a.election("two").start(t)
		<-time.After(time.Minute)
		if len(second.working) > 0 {
			t.Fatal("two work at the same time")
		}
		first.end(t)
		released := time.Now()
		if waited := (<-second.working).Sub(released); waited > 5*time.Second {
			t.Errorf("the second waited %v for a lease that was released", waited)
		}
		second.end(t)
		if want := []string{"one", "", "two", ""}; !slices.Equal(a.holders, want) {
			t.Errorf("holders %q, want %q", a.holders, want)
		}
	})
}

// kill ends a replica without a release of the Lease.
func (a *apiserver) kill(t *testing.T, r *replica) {
	t.Helper()
	back := a.goAway()
	r.end(t)
	back()
}

func TestLead_SameIdentityTakesOverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		first := a.election("host_instance").start(t)
		<-first.working
		a.kill(t, first)
		killed := time.Now()
		again := a.election("host_instance").start(t)
		if waited := (<-again.working).Sub(killed); waited > 0 {
			t.Errorf("waited %v", waited)
		}
		a.kill(t, again)
		killed = time.Now()
		other := a.election("host_other").start(t)
		if waited := (<-other.working).Sub(killed); waited < 10*time.Second {
			t.Errorf("another identity waited only %v", waited)
		}
		other.end(t)
	})
}

// A leader that cannot renew ends its work before another replica may begin. It does so also if the
// kube-apiserver accepts connections and never answers.
func TestLead_LostEndsWorkInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		e := a.election("one")
		first := e.start(t)
		began := <-first.working
		back := a.goAway()
		if worked := (<-first.stopped).Sub(began); worked >= e.Duration {
			t.Errorf("worked for %v without a lease that lasts %v", worked, e.Duration)
		}
		if err := <-first.ended; !errors.Is(err, ErrLost) {
			t.Errorf("got %v", err)
		}
		back()
	})
}

func TestLead_AnotherTookIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		first := a.election("one").start(t)
		<-first.working
		a.mu.Lock()
		other := "thief"
		a.lease.Spec.HolderIdentity = &other
		a.lease.ResourceVersion = "stolen"
		a.mu.Unlock()
		if err := <-first.ended; !errors.Is(err, ErrLost) {
			t.Errorf("got %v", err)
		}
		if *a.lease.Spec.HolderIdentity != other {
			t.Error("the lease of another was released")
		}
	})
}

func TestLead_ErrorOfWorkIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		want := errors.New("boom")
		var leaders []string
		err := a.election("one").Lead(t.Context(), func(l string) { leaders = append(leaders, l) }, func(context.Context) error {
			synctest.Wait()
			return want
		})
		if !errors.Is(err, want) || errors.Is(err, ErrLost) {
			t.Errorf("got %v", err)
		}
		if !slices.Contains(leaders, "one") {
			t.Errorf("observed %q", leaders)
		}
		if want := []string{"one", ""}; !slices.Equal(a.holders, want) {
			t.Errorf("holders %q, want %q", a.holders, want)
		}
	})
}

func TestReadable(t *testing.T) {
	a := &apiserver{}
	if err := a.election("one").Readable(t.Context()); err != nil {
		t.Errorf("no Lease yet: %v", err)
	}
	a.goAway()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.election("one").Readable(ctx); err == nil {
		t.Error("readable although the server does not answer")
	}
}

func TestCheckTimes(t *testing.T) {
	if err := CheckTimes(137*time.Second, 107*time.Second, 26*time.Second); err != nil {
		t.Error(err)
	}
	for _, c := range [][3]time.Duration{{10, 10, 2}, {15, 10, 6}, {15, 10, 0}, {5, 10, 1}} {
		if err := CheckTimes(c[0], c[1], c[2]); err == nil {
			t.Errorf("%v: accepted", c)
		}
	}
}

func TestIdentity(t *testing.T) {
	got, err := Identity("x")
	if err != nil || !strings.HasSuffix(got, "_x") || len(got) < 3 {
		t.Errorf("got %q, %v", got, err)
	}
}
