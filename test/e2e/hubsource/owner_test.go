package hubsource

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	workversioned "open-cluster-management.io/api/client/work/clientset/versioned"
	workclient "open-cluster-management.io/api/client/work/clientset/versioned/typed/work/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/hubsource"
	"github.com/hawser-io/hawser/internal/testkit"
)

// slow is a RoundTripper that delays the answers to patches, or the events of watches.
type slow struct {
	http.RoundTripper
	answers, events time.Duration
}

// RoundTrip implements http.RoundTripper.
func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := s.RoundTripper.RoundTrip(r)
	switch {
	case err != nil:
	case r.Method == http.MethodPatch:
		<-time.After(s.answers)
	case r.URL.Query().Get("watch") != "":
		<-time.After(s.events)
		answer.Body = slowly{answer.Body, s.events}
	}
	return answer, err
}

// endsDeletionsWithoutAnAgent: hub-source recognizes its own finalizer, whether the answer to its patch or the
// event comes first. It asks no agent to confirm a deletion that no agent received. Each source meets a broker
// that does not know it yet.
func endsDeletionsWithoutAnAgent(h *hub) {
	const works = 30
	client := h.Works.WorkV1().ManifestWorks("cluster2")
	for _, s := range []slow{{answers: 200 * time.Millisecond}, {}, {events: 200 * time.Millisecond}} {
		h.broker = testkit.StartBroker(h.T, testkit.Options{})
		stop := h.source(func(c *hubsource.Config) {
			limited := rest.CopyConfig(h.Limited)
			limited.Wrap(func(to http.RoundTripper) http.RoundTripper { s.RoundTripper = to; return s })
			c.Works = workversioned.NewForConfigOrDie(limited)
		})
		for i := range works {
			w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("w", i)}}
			w.Spec.Workload.Manifests = manifests("a")
			if _, err := client.Create(h.Context(), w, metav1.CreateOptions{}); err != nil {
				h.Fatal(err)
			}
		}
		h.Eventually(func() error { return h.count(client, works) })
		if err := client.DeleteCollection(h.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			h.Fatal(err)
		}
		h.Eventually(func() error {
			if err := h.count(client, 0); err != nil {
				return fmt.Errorf("answers come %s late, events %s: of %d deletions: %w", s.answers, s.events, works, err)
			}
			return nil
		})
		if err := stop(); err != nil {
			h.Fatal(err)
		}
	}
}

// count returns an error unless exactly want works have a finalizer.
func (h *hub) count(client workclient.ManifestWorkInterface, want int) error {
	list, err := client.List(h.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	held := slices.DeleteFunc(list.Items, func(w workv1.ManifestWork) bool { return len(w.Finalizers) == 0 })
	if len(held) != want {
		return fmt.Errorf("%d works are held, not %d", len(held), want)
	}
	return nil
}

// slowly is a body that delays each part.
type slowly struct {
	io.ReadCloser
	by time.Duration
}

func (s slowly) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	if err == nil {
		<-time.After(s.by)
	}
	return n, err
}
