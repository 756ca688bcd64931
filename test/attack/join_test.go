//go:build linux

package attack

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-io/hawser/internal/hubsource/registration"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/testkit/fakehub"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// TestJoiners: a client with a bootstrap token, or with the certificate of one cluster, gets nothing of other
// clusters. Its requests for certificates do not delay the fleet.
func TestJoiners(t *testing.T) { attack(t, "joiners") }

// joinConfig is the configuration of a broker with registration.
const joinConfig = "registration: {source: hub}\n" +
	"tokens: {audiences: [hawser], mapping: [{user: '" + bootstrapUser + "', role: bootstrap}]}\n"

const bootstrapUser = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap"

// hubs are the attacks with a hub behind the broker.
var hubs = map[string]bool{"joiners": true}

// Limits and loads of the attack joiners.
const (
	// forged is the number of forbidden requests.
	forged = 15
	// maxUndecided is the limit of undecided certificate requests of a cluster on the hub, see
	// docs/operations/hub-source.md.
	maxUndecided = 20
	// maxOnTheHub is the limit for the final size of the hub in bytes, with its clusters and the attacker's
	// objects. maxEvents is the limit for the Events of one cluster at once, with those of half a minute.
	maxOnTheHub = 512 << 10
	maxEvents   = 66
	// fills is the number of offered objects of 1 MiB. The port reads at most that many of one identity at once.
	fills = 6
	// maxAnswer is the longest p99 of the hub's answers to the Lease of a member and to a cluster that joins.
	maxAnswer = time.Second
	// requestEvery is the interval of these requests.
	requestEvery = 50 * time.Millisecond
)

// tokenFile returns the file in which the hub writes the bootstrap token.
func tokenFile(files pki.Dir) string { return filepath.Join(string(files), "bootstrap-token") }

// runHub runs a hub with its hub-source. The hub has accepted the clusters of the fleet, and the attacker's
// cluster.
func runHub(ctx context.Context) error {
	files := pki.Dir(os.Getenv("HAWSER_HOSTILE_PKI"))
	s := fakehub.New()
	s.Put("clusterroles", fakehub.Object{"metadata": fakehub.Object{"name": "registrar"}, "rules": []any{
		fakehub.Object{"verbs": []any{"create"}, "apiGroups": []any{"certificates.k8s.io"}, "resources": []any{"certificatesigningrequests"}},
	}})
	s.Put("clusterrolebindings", fakehub.Object{"metadata": fakehub.Object{"name": "registrar"}, "roleRef": fakehub.Object{"kind": "ClusterRole", "name": "registrar"},
		"subjects": []any{fakehub.Object{"kind": "User", "name": ocm.Registrar}}})
	names := []string{evil}
	for i := range clusters {
		names = append(names, cluster(i))
	}
	for _, name := range names {
		s.Put("namespaces", fakehub.Object{"metadata": fakehub.Object{"name": name}})
		s.Put("managedclusters", fakehub.Object{"metadata": fakehub.Object{"name": name}, "spec": fakehub.Object{"hubAcceptsClient": true}})
		s.Put("leases", fakehub.Object{"metadata": fakehub.Object{"namespace": name, "name": "managed-cluster-lease"}, "spec": fakehub.Object{}})
		s.Put("serviceaccounts", fakehub.Object{"metadata": fakehub.Object{
			"namespace": name, "name": "addon", "labels": fakehub.Object{"addon.open-cluster-management.io/token-infrastructure": "true"},
		}})
	}
	token := s.Token("open-cluster-management", "agent-registration-bootstrap", validFor, "hawser")
	if err := os.WriteFile(tokenFile(files), []byte(token), 0o600); err != nil {
		return err
	}
	f := &fleet{addr: os.Getenv("HAWSER_HOSTILE_ADDR"), files: files}
	dialer, err := f.dialer(pki.Source, source)
	if err != nil {
		return err
	}
	hub, err := registration.NewHub(s.Config("hub-source"))
	if err != nil {
		return err
	}
	server := registration.New(registration.Config{
		ID: source, Hub: hub, Dialer: dialer, Registerer: prometheus.NewRegistry(), Health: &telemetry.Health{}, Log: slog.New(slog.DiscardHandler),
	})
	if err := emit(outputLine{What: "ready"}); err != nil {
		return err
	}
	if err := taskgroup.Group(ctx, taskgroup.Task{Name: "server", Run: server.Run}, taskgroup.Task{Name: "approve", Run: func(ctx context.Context) error { return approve(ctx, s) }}); err != nil {
		return err
	}
	n, size, events, renewals := 0, 0, len(s.All("events")), 0
	for _, resource := range []string{"certificatesigningrequests", "managedclusters", "events"} {
		for _, o := range s.All(resource) {
			text, err := json.Marshal(o)
			if err != nil {
				return err
			}
			size += len(text)
			name := o["metadata"].(object)["name"].(string)
			if strings.HasPrefix(name, flooded+"-") {
				n++
			}
			if strings.HasPrefix(name, evil+"-renewal-") {
				renewals++
			}
		}
	}
	return emit(outputLine{What: "load", Text: fmt.Sprintf(onTheHub, n, size, events, renewals)}) // when it ends, as an attacker does
}

// onTheHub is the format of the hub's last line.
const onTheHub = "%d requests for certificates, %d bytes, %d Events, %d renewals"

// approve approves each certificate request of the attacker's cluster, as hub-source does for renewals.
func approve(ctx context.Context, s *fakehub.Server) error {
	return every(ctx, 2*time.Millisecond, func() error {
		for _, o := range s.All("certificatesigningrequests") {
			name := o["metadata"].(object)["name"].(string)
			if status, _ := o["status"].(object); strings.HasPrefix(name, evil+"-renewal-") && status["conditions"] == nil {
				s.Change("certificatesigningrequests", "", name, func(o object) {
					o["status"] = object{"conditions": []any{object{"type": "Approved", "status": "True"}}, "certificate": "Q0VSVA=="}
				})
			}
		}
		return nil
	})
}

// flooded is the cluster of the certificate requests in joiners.
const flooded = "new"

// requestedCSRs are the kinds of requests of well-behaved clusters during the attack.
var requestedCSRs = []string{"lease", "join"}

// undecided fails the test if the attack left too many objects on the hub, or none.
func (s *stage) undecided() {
	s.t.Helper()
	var n, size, events, renewals int
	text := s.end(s.hub)
	_, err := fmt.Sscanf(text, onTheHub, &n, &size, &events, &renewals)
	s.t.Logf("the hub has %s", text)
	if err != nil || n == 0 || n > maxUndecided {
		s.t.Errorf("the flood made %d requests for certificates on the hub, at most %d are allowed: %v", n, maxUndecided, err)
	}
	if size > maxOnTheHub || events == 0 || events > maxEvents || renewals == 0 || renewals > 2*maxUndecided {
		s.t.Errorf("one token and one agent made %s on the hub, at most %d bytes, %d Events and %d renewals are allowed", text, maxOnTheHub, maxEvents, 2*maxUndecided)
	}
}

// tried fails the test if the attacker did not send all of its requests.
func (s *stage) tried(load string) {
	s.t.Helper()
	if want := fmt.Sprintf("%d refused with reasons", forged); !strings.Contains(load, want) || !strings.Contains(load, requested) {
		s.t.Errorf("the attacker offered %q, want %s, and %s", load, want, requested)
	}
}

// joinersWait fails the test if the hub's answers to well-behaved clusters took too long.
func (s *stage) joinersWait(r raid) {
	s.t.Helper()
	for _, what := range requestedCSRs {
		all := s.fleet.took(what, r.began, r.ended)
		s.t.Logf("p99 of %d answers to %s is %v", len(all), what, percentile(all))
		if took := percentile(all); took > maxAnswer {
			s.t.Errorf("p99 of %d answers to %s is %v, at most %v is allowed", len(all), what, took, maxAnswer)
		}
	}
}

// request renews the Lease of a member, and requests to join as a new cluster. It reports the time of each
// answer.
func (f *fleet) request(ctx context.Context) error {
	token, err := os.ReadFile(tokenFile(f.files))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // this attack has no hub
	}
	if err != nil {
		return err
	}
	member, err := f.dial(ctx, pki.Agent, cluster(0))
	if err != nil {
		return err
	}
	defer member.Close()
	joiner, err := target{addr: f.addr, pki: f.files}.joiner(ctx, string(token))
	if err != nil {
		return err
	}
	defer joiner.Close()
	return every(ctx, requestEvery, func() error {
		return errors.Join(
			answered(ctx, member, "lease", codec.Leases, codec.UpdateRequest, cluster(0), lease(cluster(0))),
			answered(ctx, joiner, "join", codec.ManagedClusters, codec.CreateRequest, "modest", managedCluster("modest")),
		)
	})
}

// answered sends a request, and reports the time until the hub's answer.
func answered(ctx context.Context, c transport.Conn, what string, d codec.DataType, a codec.Action, cluster string, o object) error {
	e, err := requester(d, codec.Spec, a, cluster, o)
	if err != nil {
		return err
	}
	began := time.Now()
	_, err = c.Publish(ctx, e, "")
	took := time.Since(began)
	switch {
	case ctx.Err() != nil: // the test stopped it
		return nil //nolint:nilerr // and did
	case err != nil && !strings.Contains(err.Error(), "AlreadyExists"):
		took = givenUp
	}
	return emit(outputLine{At: began, What: what, Took: took, Text: fmt.Sprint(err)})
}

// requested is the kind of load that joiners sends.
const requested = "requests for certificates"

// forge sends all forbidden requests.
func forge(ctx context.Context, t target) error {
	token, err := os.ReadFile(tokenFile(t.pki))
	if err != nil {
		return err
	}
	return t.refused(ctx, string(token))
}

// joiners sends certificate requests without a pause.
func joiners(ctx context.Context, t target) error {
	token, err := os.ReadFile(tokenFile(t.pki))
	if err != nil {
		return err
	}
	t.token = string(token)
	request, err := requestOf(pkix.Name{CommonName: agentOf(flooded), Organization: groupsOf(flooded)}, false)
	if err != nil {
		return err
	}
	var n atomic.Int64
	return sideBySide(ctx, 4, again, func(ctx context.Context) error {
		w, err := t.open(ctx, false)
		if err != nil {
			return err
		}
		defer w.Close()
		var wg sync.WaitGroup
		defer wg.Wait()
		for range 8 {
			wg.Go(func() {
				_ = every(w.ended, time.Millisecond, func() error { // until the connection ends
					e, err := requester(codec.SigningRequests, codec.Spec, codec.CreateRequest, flooded, csr(flooded, fmt.Sprint(flooded, "-", n.Add(1)), request))
					if err != nil {
						return err
					}
					b, err := publishOf(e)
					if err == nil {
						err = w.whole(publish, b, t.real)
					}
					t.load.add(requested, 1)
					if errors.Is(err, errAnswered) { // rejected before the end of its body
						err = nil
					}
					return err
				})
			})
		}
		return nil
	})
}

type object = fakehub.Object

// requester returns the event of an agent's request.
func requester(d codec.DataType, s codec.Subresource, a codec.Action, cluster string, o object) (codec.Event, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return codec.Event{}, err
	}
	b := codec.Builder{
		ID: fmt.Sprint(time.Now().UnixNano()), Time: time.Now(), Source: cluster, Cluster: cluster,
		Type: codec.EventType{DataType: d, Subresource: s, Action: a}.String(), ContentType: codec.ContentTypeJSON, Data: data,
	}
	if uid, _ := o["metadata"].(object)["uid"].(string); uid != "" {
		b.Extensions = map[string]any{codec.ExtResourceID: uid}
	}
	return b.Event()
}

const prefix = "system:open-cluster-management:"

func agentOf(cluster string) string { return prefix + cluster + ":agent" }

func groupsOf(cluster string) []string {
	return []string{prefix + cluster, prefix + "managed-clusters"}
}

// requestOf returns a certificate request, with the extension of a CA if ca is true.
func requestOf(subject pkix.Name, ca bool) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.CertificateRequest{Subject: subject}
	if ca {
		template.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 19}, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), err
}

// csr returns a CertificateSigningRequest that names another user as its requester.
func csr(cluster, name string, request []byte) object {
	return object{
		"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": object{
			"name": name, "labels": object{"open-cluster-management.io/cluster-name": cluster},
			"annotations": object{"open-cluster-management.io/csr-user": agentOf(cluster)},
		},
		"spec": object{
			"request": base64.StdEncoding.EncodeToString(request), "signerName": "open-cluster-management.io/grpc",
			"usages": []any{"digital signature", "key encipherment", "client auth"},
		},
	}
}

func lease(of string) object {
	return object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": object{"name": "managed-cluster-lease", "namespace": of}, "spec": object{}}
}

func managedCluster(name string) object {
	return object{"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster", "metadata": object{
		"name": name, "labels": object{"cluster.open-cluster-management.io/clusterset": "production"},
	}, "spec": object{"hubAcceptsClient": true}}
}

// forgery is a forbidden request, and the reason for its rejection.
type forgery struct {
	what, reason, cluster string
	dataType              codec.DataType
	subresource           codec.Subresource
	action                codec.Action
	object                object
}

// refused sends all forbidden requests. The error lists those that were accepted, or rejected for another
// reason.
func (t target) refused(ctx context.Context, token string) error {
	joiner, err := t.joiner(ctx, token)
	if err != nil {
		return err
	}
	defer joiner.Close()
	member, err := (&fleet{addr: t.addr, files: t.pki}).dial(ctx, pki.Agent, evil)
	if err != nil {
		return err
	}
	defer member.Close()
	forged, err := forgeries()
	if err != nil {
		return err
	}
	var wrong []error
	for role, list := range forged {
		c := map[identity.Role]transport.Conn{identity.Bootstrap: joiner, identity.Agent: member}[role]
		for _, f := range list {
			if err := f.try(ctx, c); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %s: %w", role, f.what, err))
				continue
			}
			t.load.add("refused with reasons", 1)
		}
	}
	return errors.Join(append(wrong, raised(ctx, joiner), t.fill(ctx, joiner, member))...)
}

// fill tries to fill the hub. With the bootstrap token it sends large ManagedClusters. With the certificate of
// a cluster it sends large Events, many small ones, and renewals that are approved at once.
func (t target) fill(ctx context.Context, joiner, member transport.Conn) error {
	large := strings.Repeat("x", 1<<20)
	request, err := requestOf(pkix.Name{CommonName: agentOf(evil), Organization: groupsOf(evil)}, false)
	if err != nil {
		return err
	}
	offer := func(c transport.Conn, d codec.DataType, cluster string, o object) error {
		e, err := requester(d, codec.Spec, codec.CreateRequest, cluster, o)
		if err == nil {
			_, err = c.Publish(ctx, e, "")
		}
		t.load.add("objects to fill the hub with", 1)
		var refusal *transport.Error
		if errors.As(err, &refusal) {
			return nil // an accepted object is allowed: the test checks the final size of the hub
		}
		return err
	}
	event := func(name, note string) object {
		return object{"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": object{"namespace": evil, "name": name}, "note": note}
	}
	for i := range fills {
		cluster := managedCluster(fmt.Sprint("large-", i))
		cluster["spec"].(object)["managedClusterClientConfigs"] = []any{object{"url": "https://x", "caBundle": large}}
		err = errors.Join(err, offer(joiner, codec.ManagedClusters, fmt.Sprint("large-", i), cluster), offer(member, codec.KubeEvents, evil, event(fmt.Sprint("large-", i), large)))
	}
	for i := range 100 {
		renewal := csr(evil, fmt.Sprint(evil, "-renewal-", i), request)
		err = errors.Join(err, offer(member, codec.KubeEvents, evil, event(fmt.Sprint("small-", i), "x")), offer(member, codec.SigningRequests, evil, renewal))
	}
	return err
}

// try sends the request. It returns an error unless the request is rejected for the expected reason.
func (f forgery) try(ctx context.Context, c transport.Conn) error {
	e, err := requester(f.dataType, f.subresource, f.action, f.cluster, f.object)
	if err != nil {
		return err
	}
	_, err = c.Publish(ctx, e, "")
	var refusal *transport.Error
	if !errors.As(err, &refusal) {
		return fmt.Errorf("was not refused: %w", err)
	}
	if got, ok := codec.ParseAPIError(refusal.Message); !ok || got.Reason != f.reason || got.Message == "" {
		return fmt.Errorf("was refused with %q, not for the reason %s", refusal.Message, f.reason)
	}
	return nil
}

// joiner connects with the bootstrap token.
func (t target) joiner(ctx context.Context, token string) (transport.Conn, error) {
	creds, err := identity.Files{CA: t.pki.CACert()}.Client("", func(error) {})
	if err != nil {
		return nil, err
	}
	d, err := transportgrpc.NewDialer(transportgrpc.Options{
		Target: t.addr, Credentials: creds, Log: slog.New(slog.DiscardHandler), Token: func() (string, error) { return token, nil },
	})
	if err != nil {
		return nil, err
	}
	return d.Dial(ctx)
}

// forgeries are the forbidden requests, by the role that tries them.
func forgeries() (map[identity.Role][]forgery, error) {
	const own, other = "rogue", "c0"
	groups, err := requestOf(pkix.Name{CommonName: agentOf(own), Organization: append(groupsOf(own), "system:masters")}, false)
	authority, err2 := requestOf(pkix.Name{CommonName: agentOf(own), Organization: groupsOf(own)}, true)
	others, err3 := requestOf(pkix.Name{CommonName: agentOf(other), Organization: groupsOf(other)}, false)
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, err
	}
	token := object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": object{"name": "addon", "namespace": other, "uid": "u"}, "spec": object{}}
	requests, create := codec.SigningRequests, codec.CreateRequest
	return map[identity.Role][]forgery{
		identity.Bootstrap: {
			{"names another's ManagedCluster", "Forbidden", own, codec.ManagedClusters, codec.Spec, create, managedCluster(other)},
			{"takes another's name", "AlreadyExists", other, codec.ManagedClusters, codec.Spec, create, managedCluster(other)},
			{"reports another's status", "Forbidden", other, codec.ManagedClusters, codec.Status, codec.UpdateRequest, managedCluster(other)},
			{"requests another's token", "Forbidden", other, codec.TokenRequests, codec.Spec, create, token},
			{"renews another's lease", "Forbidden", other, codec.Leases, codec.Spec, codec.UpdateRequest, lease(other)},
			{"requests another's certificate", "Forbidden", own, requests, codec.Spec, create, csr(own, own+"-1", others)},
			{"labels its request as another's", "Forbidden", own, requests, codec.Spec, create, csr(other, own+"-2", others)},
			{"adds a group", "Forbidden", own, requests, codec.Spec, create, csr(own, own+"-3", groups)},
			{"requests to be a CA", "Invalid", own, requests, codec.Spec, create, csr(own, own+"-4", authority)},
		},
		identity.Agent: {
			{"renews another's lease", "Forbidden", evil, codec.Leases, codec.Spec, codec.UpdateRequest, lease(other)},
			{"renews it in the other's name", "Forbidden", other, codec.Leases, codec.Spec, codec.UpdateRequest, lease(other)},
			{"requests another's token", "Forbidden", evil, codec.TokenRequests, codec.Spec, create, token},
			{"requests it in the other's name", "Forbidden", other, codec.TokenRequests, codec.Spec, create, token},
			{"reports another's status", "Forbidden", evil, codec.ManagedClusters, codec.Status, codec.UpdateRequest, managedCluster(other)},
			{"requests another's certificate", "Forbidden", evil, requests, codec.Spec, create, csr(evil, "e-1", others)},
		},
	}, nil
}

// raised creates a ManagedCluster that accepts itself, and a request that names another requester. It checks
// the resulting objects on the hub.
func raised(ctx context.Context, c transport.Conn) error {
	const own = "rogue"
	request, err := requestOf(pkix.Name{CommonName: agentOf(own), Organization: groupsOf(own)}, false)
	if err != nil {
		return err
	}
	for _, o := range []struct {
		d codec.DataType
		o object
	}{{codec.ManagedClusters, managedCluster(own)}, {codec.SigningRequests, csr(own, own+"-0", request)}} {
		e, err := requester(o.d, codec.Spec, codec.CreateRequest, own, o.o)
		if err != nil {
			return err
		}
		if _, err = c.Publish(ctx, e, ""); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
			return fmt.Errorf("what may join was refused: %w", err)
		}
		if err := looked(ctx, c, o.d, own); err != nil {
			return err
		}
	}
	return nil
}

// errLooked ends a subscription after a correct object.
var errLooked = errors.New("looked at")

// looked waits for an object, and returns an error if it contains a forbidden value.
func looked(ctx context.Context, c transport.Conn, d codec.DataType, cluster string) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	err := c.Subscribe(ctx, transport.Subscription{Filter: transport.Filter{Cluster: cluster, DataType: d}}, func(transport.Accepted) {},
		func(_ context.Context, e codec.Event) error {
			var o struct {
				Metadata struct{ Labels, Annotations map[string]string } `json:"metadata"`
				Spec     struct {
					HubAcceptsClient bool `json:"hubAcceptsClient"`
				} `json:"spec"`
			}
			if err := json.Unmarshal(e.Data(), &o); err != nil {
				return err
			}
			user, want := o.Metadata.Annotations["open-cluster-management.io/csr-user"], ""
			if d == codec.SigningRequests {
				want = bootstrapUser
			}
			switch {
			case o.Spec.HubAcceptsClient:
				return errors.New("it has accepted itself")
			case o.Metadata.Labels["cluster.open-cluster-management.io/clusterset"] == "production":
				return errors.New("it is in a set of its choice")
			case user != want:
				return fmt.Errorf("the requester is %q, want %q", user, want)
			}
			return errLooked
		})
	if errors.Is(err, errLooked) {
		return nil
	}
	return fmt.Errorf("%s: %w", d.Resource, err)
}
