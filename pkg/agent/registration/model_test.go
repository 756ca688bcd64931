package registration

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/pkg/transport"
)

// TestModel checks any order of restarts, lost connections, failures and decisions of the hub. No forbidden
// request is made (the rig checks that), and the hub is not flooded. Once the faults stop, the cluster is part
// of the fleet, or reports what it waits for.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t)
		r.random = func() float64 { return rapid.Float64Range(0, 0.999).Draw(rt, "random") }
		r.start()
		refusing := false
		r.hub.refuse = func(RequestKind) error {
			if refusing && rapid.Bool().Draw(rt, "refused") {
				return &transport.Error{Code: transport.CodeUnavailable, Message: "no source is connected"}
			}
			return nil
		}
		begin, made := r.now, 0
		rt.Repeat(map[string]func(*rapid.T){
			"": func(rt *rapid.T) {
				if n := len(r.hub.waiting()); n > MaxPending+1 {
					rt.Fatalf("%d requests wait on the hub", n)
				}
				made = max(made, len(r.hub.csrs))
			},
			"pass": func(rt *rapid.T) {
				r.pass(time.Duration(rapid.IntRange(1, 1200).Draw(rt, "seconds")) * time.Second)
			},
			"restart": func(*rapid.T) { r.start() },
			"cut": func(rt *rapid.T) {
				k := Kind(rapid.IntRange(0, int(numKinds)-1).Draw(rt, "stream"))
				r.down[k] = true
				r.disconnect(k, errors.New("cut"))
			},
			"keep out": func(rt *rapid.T) {
				r.keepOut(rapid.SampledFrom([]CredentialKind{Bootstrapping, Registered}).Draw(rt, "credentials"), rapid.Bool().Draw(rt, "out"))
			},
			"hub away":     func(*rapid.T) { r.away = true },
			"hub back":     func(*rapid.T) { r.back() },
			"restore":      func(*rapid.T) { r.down = [numKinds]bool{} },
			"refuse":       func(*rapid.T) { refusing = !refusing },
			"secret":       func(*rapid.T) { r.saveErr = errorUnless(r.saveErr) },
			"another file": func(*rapid.T) { r.file += "x"; r.core.Bootstrap(r.file) },
			"decide":       func(rt *rapid.T) { r.decide(rt) },
			"accept": func(rt *rapid.T) {
				if r.hub.cluster != nil {
					r.hub.accept(rapid.Bool().Draw(rt, "yes"))
				}
			},
			"delete cluster": func(*rapid.T) {
				if r.hub.cluster != nil {
					r.hub.removeCluster()
				}
			},
		})
		r.calm(rt)
		if hours := r.now.Sub(begin).Hours(); float64(made) > 30+20*hours {
			rt.Errorf("%d requests in %.1f hours", made, hours)
		}
	})
}

// decide makes the hub decide about a request, or drop one.
func (r *rig) decide(rt *rapid.T) {
	waiting := r.hub.waiting()
	if len(waiting) == 0 {
		return
	}
	slices.Sort(waiting)
	name := rapid.SampledFrom(waiting).Draw(rt, "request")
	switch rapid.IntRange(0, 3).Draw(rt, "decision") {
	case 0:
		r.hub.deny(name)
	case 1:
		r.hub.remove(name)
	case 2:
		r.hub.lifetime = time.Duration(rapid.IntRange(0, 3600).Draw(rt, "lifetime")) * time.Second
		r.hub.approve(name)
	default:
		r.hub.lifetime = time.Hour
		r.hub.approve(name)
	}
}

// calm ends all faults, makes the hub approve everything, and checks the final state.
func (r *rig) calm(rt *rapid.T) {
	r.down, r.saveErr, r.hub.refuse, r.hub.lifetime = [numKinds]bool{}, nil, nil, time.Hour
	r.hub.approving, r.hub.accepting = true, true
	clear(r.out)
	r.back()
	for _, name := range r.hub.waiting() {
		r.hub.approve(name)
	}
	r.pass(2*lastRequest + time.Minute)
	if r.hub.cluster == nil { // the cluster was deleted, so an operator must provide a new file
		r.file += "y"
		r.core.Bootstrap(r.file)
		r.pass(2*lastRequest + time.Minute)
	}
	if r.hub.cluster != nil && !r.hub.cluster.Spec.HubAcceptsClient {
		r.hub.accept(true)
	}
	r.pass(time.Minute)
	if err := r.core.WaitReason(); err != nil || r.as != Registered || !r.hub.available() {
		rt.Fatalf("as %s it waits for %v, trouble %v", r.as, err, r.core.Trouble())
	}
	if own := r.used; own == nil || !r.now.Before(own.NotAfter) || string(r.secret[keyCert]) != string(own.Cert) {
		rt.Fatalf("the certificate in use is not a valid one of the Secret")
	}
	if renewals := r.hub.renewals; renewals == 0 {
		rt.Fatal("the Lease was never renewed")
	}
}

func errorUnless(err error) error {
	if err == nil {
		return errors.New("forbidden")
	}
	return nil
}
