package hubsource

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/broker"
	"github.com/hawser-io/hawser/internal/hubsource/registration"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/mem"
)

// requester publishes requests for objects on the hub, as an agent does.
type requester struct {
	*membersHub
	transport.Conn
	requests int
}

func (h *membersHub) requester(b *testkit.Broker, p transport.Peer) *requester {
	h.Helper()
	conn, err := mem.New(b.Broker, p).Dial(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		if err := conn.Close(); err != nil {
			h.Error(err)
		}
	})
	return &requester{membersHub: h, Conn: conn}
}

// requestsTokens publishes a request. It returns the reason of the rejection, "" if the hub accepted it.
func (a *requester) requestsTokens(d codec.DataType, cluster string, o any) string {
	a.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		a.Fatal(err)
	}
	a.requests++
	e, err := codec.Builder{
		ID: fmt.Sprint(a.requests), Time: metav1.Now().Time, Source: cluster, Cluster: cluster, ContentType: codec.ContentTypeJSON, Data: data,
		Type: codec.EventType{DataType: d, Subresource: codec.Spec, Action: codec.CreateRequest}.String(),
	}.Event()
	if err != nil {
		a.Fatal(err)
	}
	_, err = a.Publish(a.Context(), e, "")
	var refusal *transport.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refusal):
		if reported, ok := codec.ParseAPIError(refusal.Message); ok {
			return reported.Reason
		}
	}
	return err.Error()
}

// bytesOf returns the size of objects in JSON, in bytes: etcd stores custom resources as JSON.
func bytesOf[T any](t *testing.T, items []T) (n int) {
	t.Helper()
	for _, o := range items {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		n += len(text)
	}
	return n
}

// TestBounds: the holder of one bootstrap token and one accepted agent try to fill a hub. It runs on a
// kube-apiserver with hub-source's rights, and hub-source approves renewals. The test judges the total number
// of objects.
func TestBounds(t *testing.T) {
	const waiting = 100
	h := newMembersHub(t)
	h.Kubectl("apply", "-f", "../../../deploy/hub-source-registration/rbac.yaml")
	h.serve()
	b := testkit.StartBroker(t, testkit.Options{Broker: broker.Config{Registration: "hub"}})
	reached, err := registration.NewHub(h.Limited)
	if err != nil {
		t.Fatal(err)
	}
	server := registration.New(registration.Config{
		ID: "hub", Hub: reached, MaxPending: waiting, Dialer: b.Dialer(identity.Identity{Role: identity.Source, Name: "hub"}),
		Registerer: prometheus.NewRegistry(), Health: &telemetry.Health{}, Log: slog.New(slog.NewTextHandler(h.Output(), nil)),
	})
	h.Client(server.Run)

	const boot = "system:serviceaccount:fleet:joiner"
	joiner := h.requester(b, transport.Peer{Role: string(identity.Bootstrap), Name: boot, User: boot})
	joins := func(name string, bundle int) string {
		c := clusterv1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.ManagedClusterClientConfigs = []clusterv1.ClientConfig{{URL: "https://" + name, CABundle: bytes.Repeat([]byte("c"), bundle)}}
		return joiner.requestsTokens(codec.ManagedClusters, name, c)
	}
	h.Eventually(func() error {
		if refused := joins("usual", 8<<10); refused != "" {
			return fmt.Errorf("a CA bundle of 8 KiB is refused: %s", refused)
		}
		return nil
	})
	for i := range 40 {
		joins(fmt.Sprint("large-", i), 900<<10)
	}
	last := ""
	for i := range waiting {
		last = joins(fmt.Sprint("small-", i), 11<<10)
	}
	clusters, err := h.clusters.ClusterV1().ManagedClusters().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := bytesOf(t, clusters.Items); n > 2*waiting*(8<<10) || last != "TooManyRequests" || len(clusters.Items) < waiting/3 {
		t.Errorf("one bootstrap token has %d ManagedClusters of %d bytes on the hub, the last was refused with %q", len(clusters.Items), n, last)
	}

	h.patchCluster("usual", `{"spec":{"hubAcceptsClient":true}}`)
	h.Eventually(func() error {
		_, err := h.Kube.CoordinationV1().Leases("usual").Get(t.Context(), ocm.LeaseName, metav1.GetOptions{})
		return errors.Join(err, b.Registration().Accepted("usual"))
	})
	agent := h.requester(b, transport.Peer{Role: string(identity.Agent), Name: "usual", User: agentOf("usual"), Groups: subjectOf("usual").Organization})
	eventOf := func(name, path string) *eventsv1.Event {
		e := &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "usual", Name: name}, EventTime: metav1.NowMicro(), ReportingController: "klusterlet-agent",
			ReportingInstance: "klusterlet-agent-0", Action: "Report", Reason: "Available", Note: strings.Repeat("n", 1000), Type: "Normal",
		}
		e.Regarding.APIVersion, e.Regarding.Kind, e.Regarding.Name, e.Regarding.Namespace, e.Regarding.FieldPath = "v1", "Pod", "p", "usual", path
		return e
	}
	if refused := agent.requestsTokens(codec.KubeEvents, "usual", eventOf("first", "spec.containers{agent}")); refused != "" {
		t.Errorf("an Event as a klusterlet sends it is refused: %s", refused)
	}
	for i := range 20 {
		agent.requestsTokens(codec.KubeEvents, "usual", eventOf(fmt.Sprint("large-", i), strings.Repeat("x", 1<<20)))
	}
	for i := range 200 {
		last = agent.requestsTokens(codec.KubeEvents, "usual", eventOf(fmt.Sprint("small-", i), strings.Repeat("x", 200)))
	}
	events, err := h.Kube.EventsV1().Events("usual").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := bytesOf(t, events.Items); n > 200<<10 || last != "TooManyRequests" || len(events.Items) < 30 {
		t.Errorf("one agent has %d Events of %d bytes on the hub, the last was refused with %q", len(events.Items), n, last)
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subjectOf("usual")}, key)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		name := fmt.Sprint("renewal-", i)
		last = agent.requestsTokens(codec.SigningRequests, "usual", certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{clusterv1.ClusterNameLabelKey: "usual"}},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: ocm.Signer,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth},
			},
		})
		if last == "" {
			h.csrHas(name, certificatesv1.CertificateApproved)
		}
	}
	csrs, err := h.Kube.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := bytesOf(t, csrs.Items); len(csrs.Items) != 40 || n > 40*(16<<10) || last != "TooManyRequests" {
		t.Errorf("one agent has %d CSRs of %d bytes on the hub, the last was refused with %q", len(csrs.Items), n, last)
	}
	t.Logf("on the hub: %d ManagedClusters of %d bytes, %d Events of %d, %d CSRs of %d",
		len(clusters.Items), bytesOf(t, clusters.Items), len(events.Items), bytesOf(t, events.Items), len(csrs.Items), bytesOf(t, csrs.Items))
}
