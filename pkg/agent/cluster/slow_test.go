package cluster

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRequested(t *testing.T) {
	for path, want := range map[string]string{
		"GET /api/v1/namespaces/n/configmaps/a":                        "configmaps n/a",
		"GET /api/v1/namespaces/n":                                     "namespaces n",
		"POST /api/v1/namespaces":                                      "namespaces ",
		"PATCH /prefix/apis/apps/v1/namespaces/n/deployments/d/status": "deployments.apps n/d",
		"POST /apis/apps/v1/namespaces/n/deployments":                  "deployments.apps n/",
		"POST /apis/authorization.k8s.io/v1/subjectaccessreviews":      "subjectaccessreviews.authorization.k8s.io ",
		"GET /apis/apps/v1/namespaces/n/deployments":                   "",
		"GET /apis/apps/v1/deployments":                                "",
		"GET /apis/apps/v1":                                            "",
		"GET /apis/apps":                                               "",
		"GET /version":                                                 "",
		"PATCH /apis/work.open-cluster-management.io/v1/appliedmanifestworks/hash-name": "",
	} {
		method, path, _ := strings.Cut(path, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, "https://c"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if kind, object, counts := requested(req); counts {
			got = kind.String() + " " + object
		}
		if got != want {
			t.Errorf("%s %s: got %q, want %q", method, path, got, want)
		}
	}
}

// server answers for Deployments when it is let go, and for all else at once.
type server struct {
	free   chan struct{}
	status int
	asked  int
}

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	if kind, _, _ := requested(req); kind.Resource == "deployments" {
		s.asked++
		select {
		case <-s.free:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
		return &http.Response{StatusCode: s.status, Body: http.NoBody}, nil
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestBreaker_AKindThatIsNotAnsweredForIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{free: make(chan struct{}), status: http.StatusGatewayTimeout}
		b := newBreaker(s)
		ask := func(path string) error {
			var p Progress
			req, err := http.NewRequestWithContext(WithProgress(t.Context(), &p), http.MethodGet, "https://c"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			answer := make(chan error, 1)
			go func() {
				res, err := b.RoundTrip(req)
				if err == nil {
					err = res.Body.Close()
				}
				answer <- err
			}()
			synctest.Wait()
			select {
			case err := <-answer:
				return err
			default:
				if p.Waits() != "get deployments.apps n/d" {
					t.Errorf("it waits for %q", p.Waits())
				}
				return errWaits
			}
		}
		const deployment = "/apis/apps/v1/namespaces/n/deployments/d"
		for range 3 {
			if err := ask(deployment); !errors.Is(err, errWaits) {
				t.Fatal(err)
			}
		}
		<-time.After(longRequest)
		var slow *SlowError
		if err := ask(deployment); !errors.As(err, &slow) || slow.What != "deployments.apps" {
			t.Errorf("one more: %v", err)
		}
		for _, other := range []string{"/apis/apps/v1/namespaces/n/replicasets/r", "/api/v1/namespaces/n/configmaps/a"} {
			if err := ask(other); err != nil {
				t.Errorf("%s: %v", other, err)
			}
		}
		<-time.After(lostTime)
		close(s.free) // with an error, after long
		synctest.Wait()
		before := s.asked
		if err := ask(deployment); !errors.As(err, &slow) || s.asked != before {
			t.Errorf("after a failure: %v", err)
		}
		<-time.After(restTime)
		s.status = http.StatusOK
		if err := ask(deployment); err != nil || len(b.(*breaker).kinds) != 0 {
			t.Errorf("after a rest: %v, and of %d kinds something is remembered", err, len(b.(*breaker).kinds))
		}
	})
}

var errWaits = errors.New("it waits")

// A group whose kinds are not told holds up nobody for longer than kindsPatience, and those who
// come later not at all.
func TestKinds_AGroupThatIsNotToldHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, d, _ := newTestKinds()
		k.now = time.Now
		d.block = make(chan struct{})
		gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Rope"}
		for _, want := range []time.Duration{kindsPatience, 0} {
			began := time.Now()
			_, err := k.resolve(t.Context(), gvk)
			var slow *SlowError
			if took := time.Since(began); !errors.As(err, &slow) || took != want {
				t.Errorf("got %v after %v, want it after %v", err, took, want)
			}
		}
		close(d.block)
		synctest.Wait()
		var unknown *NoKindError
		if _, err := k.resolve(context.Background(), gvk); !errors.As(err, &unknown) {
			t.Errorf("when it is told: %v", err)
		}
	})
}
