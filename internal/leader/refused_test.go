package leader

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection"
)

var errAdmission = apierrors.NewInternalError(errors.New(`failed calling webhook "all.example.com": failed to call webhook: service "none" not found`))

// admission makes the server refuse every write with err, none if err is nil.
func (a *apiserver) admission(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = err
}

// A leader whose writes admission refuses continues, and so does its next process. When admission is repaired,
// the leader renews before another replica takes the Lease.
func TestLead_AdmissionRefusesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		first := a.election("one").start(t)
		<-first.working
		second := a.election("two").start(t)
		a.admission(errAdmission)
		<-time.After(10 * time.Minute)
		if len(first.stopped) > 0 || len(second.working) > 0 {
			t.Fatal("the leader stopped, or another one works beside it")
		}
		a.kill(t, first)
		again := a.election("one").start(t)
		<-again.working
		<-time.After(10 * time.Minute)
		for range 20 { // admission is repaired at any time
			a.admission(nil)
			<-time.After(1700 * time.Millisecond)
			a.admission(errAdmission)
			<-time.After(41 * time.Second)
		}
		a.admission(nil)
		<-time.After(10 * time.Minute)
		if len(again.stopped) > 0 || len(second.working) > 0 {
			t.Fatal("the other replica took the lease of a leader that is there")
		}
		again.end(t)
		<-second.working
		second.end(t)
	})
}

// If a leader does not come back, another replica takes over when its own writes have passed for the duration
// of the Lease. Until then it works limited.
func TestLead_LimitedWhileAdmissionKeepsItFromTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		first := a.election("one").start(t)
		<-first.working
		a.admission(errAdmission)
		a.kill(t, first)
		limits := make(chan error, 10)
		e := a.election("two")
		e.Limit = func(cause error) { limits <- cause }
		killed := time.Now()
		second := e.start(t)
		if began := (<-second.working).Sub(killed); began < e.Duration || !errors.Is(<-limits, errAdmission) {
			t.Errorf("works after %v, unlimited", began)
		}
		<-time.After(time.Minute)
		if len(limits) > 0 {
			t.Fatal("it has the lease although nothing can be written")
		}
		a.admission(nil)
		repaired := time.Now()
		if <-limits != nil {
			t.Fatal("still limited")
		}
		// A dry run must pass first, and an attempt after Duration. client-go adds up to JitterFactor to each pause.
		attempts := 2 * time.Duration((1+leaderelection.JitterFactor)*float64(e.RetryPeriod))
		if took := time.Since(repaired); took < e.Duration || took > e.Duration+attempts {
			t.Errorf("took the lease after %v", took)
		}
		second.end(t)
	})
}

// A refusal for another reason than admission ends the leader.
func TestLead_OtherRefusalsEndIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &apiserver{}
		first := a.election("one").start(t)
		<-first.working
		a.admission(apierrors.NewForbidden(leases, "lease", errors.New("no right")))
		if err := <-first.ended; !errors.Is(err, ErrLost) {
			t.Errorf("got %v", err)
		}
	})
}
