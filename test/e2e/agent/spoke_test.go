// Package agent runs the agent on a real kube-apiserver, with the permissions of deploy/. The broker runs in
// this process, and a source publishes what each test needs. The tests show how the API server treats each
// write.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/agent"
	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/drift"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/session"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

const (
	clusterName = "cluster1"
	hubIdentity = "hub.example.com:8090"
)

// spoke is a kube-apiserver with the objects of deploy/agent.
type spoke struct {
	harness.ControlPlane
	requests *requests
	lines    *lines
	broker   *testkit.Broker
	source   *source
}

func newSpoke(t *testing.T) *spoke {
	t.Helper()
	s := &spoke{ControlPlane: *harness.NewControlPlane(t, "../../..", "agent", "appliedmanifestworks", 1), requests: &requests{}, lines: &lines{}}
	s.Limited.Wrap(func(rt http.RoundTripper) http.RoundTripper { s.requests.next = rt; return s.requests })
	s.broker = testkit.StartBroker(t, testkit.Options{})
	s.source = &source{spoke: s, statuses: map[string]manifestwork.StatusReport{}}
	s.source.session = session.New(session.Config{
		Dialer: s.broker.Dialer(identity.Identity{Role: identity.Source, Name: "hub"}),
		Filter: transport.Filter{Source: "hub", DataType: codec.ManifestBundles}, Handler: s.source, Log: slog.New(slog.DiscardHandler),
	})
	s.Client(s.source.session.Run)
	s.Eventually(s.source.session.Err)
	return s
}

func (s *spoke) client(r *rest.Config) *kubeclient.Kube {
	s.Helper()
	k, err := kubeclient.NewKube(kubeclient.KubeConfig{REST: r})
	if err != nil {
		s.Fatal(err)
	}
	return k
}

// agent starts an agent with only the rights of its ServiceAccount.
func (s *spoke) agent() (stop func()) {
	s.Helper()
	k := s.client(s.Limited)
	a, err := agent.New(agent.Config{
		Cluster: clusterName, HubIdentity: hubIdentity, StatusSyncInterval: 2 * time.Second,
		Dialer: s.broker.Dialer(identity.Identity{Role: identity.Agent, Name: clusterName}),
		Client: k, Metadata: drift.Metadata(k.Metadata()), Log: slog.New(slog.NewTextHandler(io.MultiWriter(s.Output(), s.lines), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		s.Fatal(err)
	}
	ended := s.Client(a.Run)
	s.Eventually(func() error { return errors.Join(a.ClusterReady(), a.BrokerReady()) })
	return func() { _ = ended() } // the cleanup of the test reports the error
}

// requests records the requests of the agent, without watches.
type requests struct {
	next http.RoundTripper
	mu   sync.Mutex
	list []string
}

// RoundTrip implements http.RoundTripper.
func (r *requests) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("watch") == "" {
		r.mu.Lock()
		r.list = append(r.list, req.Method+" "+req.URL.Path)
		r.mu.Unlock()
	}
	return r.next.RoundTrip(req)
}

func (r *requests) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.list
	r.list = nil
	return l
}

// source publishes works and keeps the statuses that it receives.
type source struct {
	spoke   *spoke
	session *session.Session

	mu       sync.Mutex
	statuses map[string]manifestwork.StatusReport // by work name
	check    func(manifestwork.StatusReport) error
}

// watch passes each received status to check, until over is called.
func (s *source) watch(check func(manifestwork.StatusReport) error) (over func()) {
	set := func(check func(manifestwork.StatusReport) error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.check = check
	}
	set(check)
	return func() { set(nil) }
}

func (s *source) Hello() transport.Hello { return transport.Hello{Protocol: transport.Protocol} }

func (s *source) Subscribed(context.Context, transport.Accepted) ([]codec.Event, error) {
	return nil, nil
}

func (s *source) Disconnected(error) {}

func (s *source) Handle(_ context.Context, e codec.Event) error {
	if e.Type() == codec.TypeCheckpoint {
		return nil // this source keeps no cursor
	}
	r, err := manifestwork.DecodeStatus(e)
	if err != nil {
		s.spoke.Errorf("source: %v", err)
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statuses[r.Name] = r
	if s.check != nil {
		if err := s.check(r); err != nil {
			s.spoke.Errorf("work %s: %v", r.Name, err)
		}
	}
	return nil
}

func (s *source) status(name string) manifestwork.StatusReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.statuses[name]
}

func (s *source) publish(w *workv1.ManifestWork, action codec.Action) {
	s.spoke.Helper()
	e, err := manifestwork.EncodeSpec(w, manifestwork.SpecParams{ID: uuid.NewString(), Now: time.Now(), Source: "hub", Action: action, DeletionWithData: true})
	if err != nil {
		s.spoke.Fatal(err)
	}
	if _, err := s.session.Publish(s.spoke.Context(), e); err != nil {
		s.spoke.Fatal(err)
	}
}

func work(name string, generation int64, manifests ...string) *workv1.ManifestWork {
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: clusterName, UID: types.UID("id-" + name), Generation: generation, Labels: map[string]string{"app": name}}}
	for _, m := range manifests {
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, workv1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(m)}})
	}
	return w
}

// apply publishes a work and waits for a status of its generation.
func (s *spoke) apply(w *workv1.ManifestWork) manifestwork.StatusReport {
	s.Helper()
	s.source.publish(w, codec.UpdateRequest)
	return s.reports(w.Name, func(r manifestwork.StatusReport) error {
		if c := meta.FindStatusCondition(r.Status.Conditions, "Applied"); c == nil || c.ObservedGeneration != w.Generation {
			return fmt.Errorf("generation %d is not reported", w.Generation)
		}
		return nil
	})
}

// applied is apply for a work that must succeed.
func (s *spoke) applied(w *workv1.ManifestWork) manifestwork.StatusReport {
	s.Helper()
	s.apply(w)
	return s.reports(w.Name, func(r manifestwork.StatusReport) error {
		for _, typ := range []string{"Applied", "Available"} {
			if c := meta.FindStatusCondition(r.Status.Conditions, typ); c == nil || c.Status != "True" || c.ObservedGeneration != w.Generation {
				return fmt.Errorf("%s: %+v", typ, c)
			}
		}
		return nil
	})
}

func (s *spoke) reports(name string, check func(manifestwork.StatusReport) error) (r manifestwork.StatusReport) {
	s.Helper()
	s.Eventually(func() error {
		r = s.source.status(name)
		if err := check(r); err != nil {
			return fmt.Errorf("work %s: %w; status %+v", name, err, r.Status)
		}
		return nil
	})
	return r
}

// deleted publishes the deletion of a work and waits for its confirmation.
func (s *spoke) deleted(w *workv1.ManifestWork) {
	s.Helper()
	s.source.publish(w, codec.DeleteRequest)
	s.confirmed(w.Name)
}

func (s *spoke) confirmed(name string) {
	s.Helper()
	s.reports(name, func(r manifestwork.StatusReport) error {
		if !r.Deleted {
			return errors.New("not deleted")
		}
		return nil
	})
	if r := s.record(name); r != nil {
		s.Fatalf("the record of %s is still there", name)
	}
}

func (s *spoke) record(name string) *workv1.AppliedManifestWork {
	s.Helper()
	a, err := s.Works.WorkV1().AppliedManifestWorks().Get(s.Context(), appliedwork.Name(appliedwork.HubHash(hubIdentity), name), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.Fatal(err)
	}
	return a
}

func (s *spoke) configMap(name string) *corev1.ConfigMap {
	s.Helper()
	c, err := s.Kube.CoreV1().ConfigMaps("default").Get(s.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func configMap(name, value string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"k":%q}}`, name, value)
}

func deployment(name string, replicas int) string {
	return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%[1]q,"namespace":"default"},"spec":{"replicas":%[2]d,
		"selector":{"matchLabels":{"app":%[1]q}},"template":{"metadata":{"labels":{"app":%[1]q}},"spec":{"containers":[{"name":"c","image":"example.com/none:1"}]}}}}`, name, replicas)
}
