package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// tokensRole is the ClusterRole that lets hub-source request tokens, and the RoleBinding to it in a cluster's
// namespace.
const tokensRole = "hawser-hub-source-tokens"

// addOn is an account with the label for tokens. simpleAddon is an account without it.
const (
	addOn       = "addon"
	simpleAddon = "ordinary"
)

// addOns requests tokens and Events as the add-ons of a member do, with the agent's certificate. hub-source may
// request tokens only in the namespace of an accepted cluster.
func (w *world) addOns(broker string) {
	w.Helper()
	kube := w.planes["hub"].kube
	for name, labels := range map[string]map[string]string{addOn: {"addon.open-cluster-management.io/token-infrastructure": "true"}, simpleAddon: nil} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if _, err := kube.CoreV1().ServiceAccounts("cluster1").Create(w.Context(), account, metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
	m := w.member(broker)
	if w.mayRequestTokens("cluster1") {
		w.Error("hub-source may request tokens in cluster1 before the first request")
	}
	// The first request is rejected at once: no right can help an account without the label.
	began := time.Now()
	m.refused(simpleAddon)
	if took := time.Since(began); took > 3*time.Second {
		w.Errorf("refused after %v", took)
	}
	m.getsToken()
	for namespace, want := range map[string]bool{"cluster1": true, "default": false, "kube-system": false} {
		if w.mayRequestTokens(namespace) != want {
			w.Errorf("hub-source may request tokens in %s: want %v", namespace, want)
		}
	}
	m.refused(simpleAddon)
	w.bindsNoOtherRole()
	m.events()

	w.run(filepath.Join(w.bin, "hawser"), "reject", "cluster", "cluster1", "--context", "hub")
	harness.Eventually(w.T, func(ctx context.Context) error {
		_, err := kube.RbacV1().RoleBindings("cluster1").Get(ctx, tokensRole, metav1.GetOptions{})
		return harness.Absent(err, "RoleBinding "+tokensRole)
	})
	if w.mayRequestTokens("cluster1") {
		w.Error("hub-source may request tokens in cluster1 after acceptance was withdrawn")
	}
	w.accepts()
	w.member(broker).getsToken()
}

// accepts accepts the denied cluster again. Its agent has requested a certificate with its token.
func (w *world) accepts() {
	w.Helper()
	s := &stay{world: w, whole: w}
	before := s.serial()
	s.acceptRequest()
	s.eventuallyTrue("the agent has another certificate", func() (bool, string) { return s.serial() != before, before })
}

// mayRequestTokens returns the answer of the hub's authorizer about hub-source.
func (w *world) mayRequestTokens(namespace string) bool {
	w.Helper()
	r, err := w.planes["hub"].kube.AuthorizationV1().SubjectAccessReviews().Create(w.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: hubSource, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: "create", Resource: "serviceaccounts", Subresource: "token",
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return r.Status.Allowed
}

const hubSource = "system:serviceaccount:hawser:hawser-hub-source"

// bindsNoOtherRole checks that hub-source's account can bind no other role to itself.
func (w *world) bindsNoOtherRole() {
	w.Helper()
	cfg, err := w.planes["hub"].RESTConfig()
	if err != nil {
		w.Fatal(err)
	}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: hubSource}
	for role, want := range map[string]bool{tokensRole: true, "admin": false} {
		_, err := kubernetes.NewForConfigOrDie(cfg).RbacV1().RoleBindings("default").Create(w.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: tokensRole},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "hawser", Name: "hawser-hub-source"}},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil != want || err != nil && !apierrors.IsForbidden(err) {
			w.Errorf("a binding of the role %s: %v, want it allowed %v", role, err, want)
		}
	}
}

// member is a client of the broker with the identity of cluster1's agent.
type member struct {
	*world
	transport.Conn
	tokens chan codec.Event // the received TokenRequests
}

// member connects with the certificate that the agent keeps in its Secret.
func (w *world) member(broker string) *member {
	w.Helper()
	s, err := w.planes["cluster1"].kube.CoreV1().Secrets("hawser").Get(w.Context(), "hawser-agent-hub", metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	dir := w.TempDir()
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.WriteFile(filepath.Join(dir, name), s.Data[name], 0o600); err != nil {
			w.Fatal(err)
		}
	}
	creds, err := identity.Files{CA: w.file("ca.crt"), Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}.Client("", func(err error) { w.Error(err) })
	if err != nil {
		w.Fatal(err)
	}
	d, err := transportgrpc.NewDialer(transportgrpc.Options{Target: broker, Credentials: creds, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.Fatal(err)
	}
	conn, err := d.Dial(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	m := &member{world: w, Conn: conn, tokens: make(chan codec.Event, 8)}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		subscription := transport.Subscription{Filter: transport.Filter{Cluster: "cluster1", DataType: codec.TokenRequests}}
		ended <- conn.Subscribe(context.WithoutCancel(w.Context()), subscription, func(transport.Accepted) { close(ready) }, func(_ context.Context, e codec.Event) error {
			m.tokens <- e
			return nil
		})
	}()
	w.Cleanup(func() {
		if err := conn.Close(); err != nil {
			w.Error(err)
		}
		if err := <-ended; err != nil {
			w.Logf("the subscription ended: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		w.Fatal(err)
	}
	return m
}

// requests publishes an object of the cluster. It returns the reason of the rejection, "" if the hub accepted
// it.
func (m *member) requests(d codec.DataType, action codec.Action, o any) (reason string) {
	m.Helper()
	return m.requestsFor(d, codec.Spec, action, o)
}

// requestsFor publishes a spec or a status; see requests.
func (m *member) requestsFor(d codec.DataType, sub codec.Subresource, action codec.Action, o any) (reason string) {
	m.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		m.Fatal(err)
	}
	e, err := codec.Builder{
		ID: fmt.Sprint(time.Now().UnixNano()), Time: time.Now(), Source: "cluster1", Cluster: "cluster1", ContentType: codec.ContentTypeJSON, Data: data,
		Type:       codec.EventType{DataType: d, Subresource: sub, Action: action}.String(),
		Extensions: map[string]any{codec.ExtResourceID: "mine"},
	}.Event()
	if err != nil {
		m.Fatal(err)
	}
	_, err = m.Publish(m.Context(), e, "")
	var refusal *transport.Error
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &refusal):
		m.Fatal(err)
	}
	reported, ok := codec.ParseAPIError(refusal.Message)
	if !ok {
		m.Fatalf("refused without the hub's error: %v", err)
	}
	return reported.Reason
}

// requestsToken requests a token of an account.
func (m *member) requestsToken(account string) (reason string) {
	m.Helper()
	return m.requests(codec.TokenRequests, codec.CreateRequest, &authenticationv1.TokenRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "cluster1", Name: account, UID: "mine"},
		Spec:       authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(600))},
	})
}

// refused checks that the hub rejects a token of this account, and that none arrives.
func (m *member) refused(account string) {
	m.Helper()
	if reason := m.requestsToken(account); reason != string(metav1.StatusReasonForbidden) {
		m.Errorf("a token of %s is refused with %q, want Forbidden", account, reason)
	}
	select {
	case e := <-m.tokens:
		m.Errorf("refused, and %s came", e.Type())
	default:
	}
}

// getsToken checks that a token arrives with which the hub's API recognizes the add-on.
func (m *member) getsToken() {
	m.Helper()
	if reason := m.requestsToken(addOn); reason != "" {
		m.Fatalf("a token of the add-on is refused: %s", reason)
	}
	var got authenticationv1.TokenRequest
	select {
	case e := <-m.tokens:
		if err := json.Unmarshal(e.Data(), &got); err != nil {
			m.Fatal(err)
		}
	case <-time.After(harness.ConvergeTimeout):
		m.Fatal("no token comes")
	}
	if got.UID != "mine" {
		m.Errorf("the token is the answer to %q", got.UID)
	}
	cfg, err := m.planes["hub"].RESTConfig()
	if err != nil {
		m.Fatal(err)
	}
	cfg = rest.AnonymousClientConfig(cfg)
	cfg.BearerToken = got.Status.Token
	review, err := kubernetes.NewForConfigOrDie(cfg).AuthenticationV1().SelfSubjectReviews().Create(m.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		m.Fatal(err)
	}
	if want := "system:serviceaccount:cluster1:" + addOn; review.Status.UserInfo.Username != want {
		m.Errorf("by the token one is %s, want %s", review.Status.UserInfo.Username, want)
	}
}

// events checks that an Event and its series arrive in the cluster's namespace on the hub. In another namespace
// an Event is rejected.
func (m *member) events() {
	m.Helper()
	e := &eventsv1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "events.k8s.io/v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "cluster1", Name: "addon.1"},
		EventTime:  metav1.NowMicro(), ReportingController: "example.com/addon", ReportingInstance: "addon-0",
		Action: "Look", Reason: "Looked", Note: "all is well", Type: corev1.EventTypeNormal,
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "ServiceAccount", Namespace: "cluster1", Name: addOn},
	}
	if reason := m.requests(codec.KubeEvents, codec.CreateRequest, e); reason != "" {
		m.Fatalf("an Event is refused: %s", reason)
	}
	e.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: metav1.NowMicro()}
	if reason := m.requests(codec.KubeEvents, codec.UpdateRequest, e); reason != "" {
		m.Fatalf("its series is refused: %s", reason)
	}
	shown, err := childproc.Run(m.Context(), m.kubectl, "--kubeconfig", m.planes["hub"].KubeconfigPath, "-n", "cluster1", "get", "event", e.Name, "-o",
		"jsonpath={.metadata.name} {.reason} {.message} {.involvedObject.name} {.series.count}")
	if want := "addon.1 Looked all is well addon 2"; err != nil || string(shown) != want {
		m.Errorf("the hub has the Event %q, %v, want %q", shown, err, want)
	}
	e.Namespace, e.Regarding.Namespace = "default", "default"
	if reason := m.requests(codec.KubeEvents, codec.CreateRequest, e); reason != string(metav1.StatusReasonForbidden) {
		m.Errorf("an Event in another namespace is refused with %q, want Forbidden", reason)
	}
}
