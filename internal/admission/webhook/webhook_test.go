package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	admissionv1 "k8s.io/api/admission/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-io/hawser/internal/admission"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/internal/testkit/syncbuffer"
)

// net/http waits half a second before it closes a connection with unread data.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// access is the answer of a hub to access reviews.
type access func(ctx context.Context, r *authorizationv1.SubjectAccessReview) (allowed bool, err error)

func (a access) Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	allowed, err := a(ctx, r)
	r.Status.Allowed = allowed
	return r, err
}

func denied(context.Context, *authorizationv1.SubjectAccessReview) (bool, error) { return false, nil }

type fixture struct {
	*testing.T
	webhook  *Webhook
	registry *prometheus.Registry
	health   *telemetry.Health
	files    identity.Files
	ca       *pki.Authority
}

func newFixture(t *testing.T, a access, log *slog.Logger) *fixture {
	t.Helper()
	f := &fixture{T: t, registry: prometheus.NewRegistry(), health: &telemetry.Health{}}
	dir := t.TempDir()
	f.files = identity.Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	certificate, err := f.files.Serving(func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	f.webhook, err = New(Config{
		Addr: "127.0.0.1:0", Rules: admission.Rules{ManifestLimit: 1000, CheckNilExecutor: true}, Certificate: certificate,
		Access: a, Registerer: f.registry, Health: f.health, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// certify writes a certificate for 127.0.0.1 to the files of the webhook.
func (f *fixture) certify() {
	f.Helper()
	valid := pki.Starting(time.Now(), time.Hour)
	var err error
	if f.ca, err = pki.NewAuthority("a", valid); err != nil {
		f.Fatal(err)
	}
	pair, err := f.ca.Issue(pki.Request{Role: pki.Broker, Name: "b", Hosts: []string{"127.0.0.1"}, Valid: valid})
	if err != nil {
		f.Fatal(err)
	}
	for file, content := range map[string][]byte{f.files.Cert: pair.CertPEM, f.files.Key: pair.KeyPEM} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			f.Fatal(err)
		}
	}
}

// post sends a body to the handler and returns its answer.
func (f *fixture) post(target, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(f.Context(), http.MethodPost, target, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	f.webhook.Handler().ServeHTTP(w, r)
	return w
}

// counted returns the number of requests with this operation and result.
func (f *fixture) counted(op operation, res result) float64 {
	f.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if family.GetName() == metricPrefix+"requests_total" && labels["operation"] == string(op) && labels["result"] == string(res) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// review returns the request of a kube-apiserver to create a work with these manifests.
func review(op admissionv1.Operation, manifests string) string {
	work := fmt.Sprintf(`{"metadata":{"namespace":"cluster1","name":"w"},"spec":{"workload":{"manifests":[%s]}}}`, manifests)
	old := ""
	if op == admissionv1.Update {
		old = `,"oldObject":{"metadata":{}}`
	}
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"7","operation":%q,"namespace":"cluster1",
		"resource":{"group":"work.open-cluster-management.io","version":"v1","resource":"manifestworks"},"userInfo":{"username":"jane"},"object":%s%s}}`, op, work, old)
}

const configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`

func responseOf(t *testing.T, w *httptest.ResponseRecorder) *admissionv1.AdmissionResponse {
	t.Helper()
	var got admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK || got.Response == nil || got.Response.UID != "7" {
		t.Fatalf("answered %d %s", w.Code, w.Body)
	}
	if typ := w.Header().Get("Content-Type"); typ != "application/json" {
		t.Errorf("content type is %q", typ)
	}
	return got.Response
}

func TestWebhook_AnswersReviews(t *testing.T) {
	for name, tc := range map[string]struct {
		body    string
		access  access
		code    int32 // 0: admitted
		message string
		warned  int
		op      operation
		res     result
	}{
		"good": {review("CREATE", configMap), func(_ context.Context, r *authorizationv1.SubjectAccessReview) (bool, error) {
			return r.Spec.User == "jane" && r.Spec.ResourceAttributes.Name == "system:serviceaccount::klusterlet-work-sa", nil
		}, 0, "", 0, operationCreate, resultAdmitted},
		"breaks a rule":        {review("CREATE", ""), denied, 400, "manifests should not be empty", 0, operationCreate, resultRejected},
		"breaks a rule later":  {review("UPDATE", configMap+","+configMap), denied, 400, "duplicate manifest for resource default/a with resource type v1.ConfigMap", 0, operationUpdate, resultRejected},
		"is not allowed":       {review("CREATE", configMap), denied, 400, "user jane cannot manipulate the Manifestwork with executor /klusterlet-work-sa in namespace cluster1", 0, operationCreate, resultRejected},
		"is warned":            {review("UPDATE", configMap+","+strings.Replace(configMap, "v1", "v2", 1)), denied, 0, "", 1, operationUpdate, resultAdmitted},
		"is warned and denied": {review("CREATE", configMap+","+strings.Replace(configMap, "v1", "v2", 1)), denied, 400, "user jane cannot manipulate the Manifestwork with executor /klusterlet-work-sa in namespace cluster1", 1, operationCreate, resultRejected},
		"cannot be known": {review("CREATE", configMap), func(context.Context, *authorizationv1.SubjectAccessReview) (bool, error) {
			return false, errors.New("the hub is down")
		}, 500, "Internal error occurred: the hub did not answer whether the user may use the executor: the hub is down", 0, operationCreate, resultFailed},
		"is deleted": {review("DELETE", ""), denied, 0, "", 0, operationOther, resultAdmitted},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, tc.access, slog.New(slog.DiscardHandler))
			got := responseOf(t, f.post(Path+"?timeout=10s", tc.body))
			var code int32
			var message string
			if got.Result != nil {
				code, message = got.Result.Code, got.Result.Message
			}
			if got.Allowed != (tc.code == 0) || code != tc.code || message != tc.message || len(got.Warnings) != tc.warned {
				t.Errorf("answered %+v", got)
			}
			if n := f.counted(tc.op, tc.res); n != 1 {
				t.Errorf("%v requests were %s %s", n, tc.op, tc.res)
			}
		})
	}
}

func TestWebhook_RejectsOtherObjects(t *testing.T) {
	f := newFixture(t, denied, slog.New(slog.DiscardHandler))
	for name, tc := range map[string]struct {
		method, path, contentType, body string
		code                            int
		want                            string
	}{
		"another path":     {"POST", "/", "application/json", "{}", http.StatusNotFound, ""},
		"another method":   {"GET", Path, "application/json", "", http.StatusMethodNotAllowed, ""},
		"another encoding": {"POST", Path, "application/yaml", "a: b", http.StatusUnsupportedMediaType, "application/json"},
		"another kind":     {"POST", Path, "application/json", `{"apiVersion":"v1","kind":"Secret"}`, http.StatusBadRequest, "AdmissionReview"},
		"too large":        {"POST", Path, "application/json", strings.Repeat("x", maxBody+1), http.StatusRequestEntityTooLarge, "larger than 8388608 bytes"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), tc.method, tc.path, strings.NewReader(tc.body))
		r.Header.Set("Content-Type", tc.contentType)
		f.webhook.Handler().ServeHTTP(w, r)
		if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%s: answered %d %s", name, w.Code, w.Body)
		}
	}
	if n := f.counted(operationOther, resultMalformed); n != 3 {
		t.Errorf("%v requests were malformed, want 3", n)
	}
}

func TestWebhook_AnswersAfterAPanic(t *testing.T) {
	var log bytes.Buffer
	panics := true
	f := newFixture(t, func(context.Context, *authorizationv1.SubjectAccessReview) (bool, error) {
		if panics {
			panic("a bug")
		}
		return true, nil
	}, slog.New(slog.NewTextHandler(&log, nil)))
	for range maxAtOnce + 1 { // each request must free its slot
		if w := f.post(Path, review("CREATE", configMap)); w.Code != http.StatusInternalServerError {
			t.Fatalf("answered %d %s", w.Code, w.Body)
		}
	}
	panics = false
	if got := responseOf(t, f.post(Path, review("CREATE", configMap))); !got.Allowed {
		t.Errorf("after the panics: %+v", got)
	}
	if n := f.counted(operationCreate, resultPanicked); n != maxAtOnce+1 || !strings.Contains(log.String(), "webhook_test.go") {
		t.Errorf("%v panics are counted, and the log has no stack: %s", n, log.String())
	}
}

// A hub that does not answer access reviews delays only its own requests, and those no longer than their client
// waits.
func TestWebhook_BoundsConcurrencyAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, func(ctx context.Context, _ *authorizationv1.SubjectAccessReview) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}, slog.New(slog.DiscardHandler))
		began := time.Now()
		var stuck sync.WaitGroup
		for range maxAtOnce {
			stuck.Go(func() {
				if got := responseOf(t, f.post(Path, review("CREATE", configMap))); got.Allowed || got.Result.Code != 500 {
					t.Errorf("answered %+v", got)
				}
			})
		}
		synctest.Wait()
		if w := f.post(Path+"?timeout=1s", review("CREATE", configMap)); w.Code != http.StatusServiceUnavailable || time.Since(began) != 900*time.Millisecond {
			t.Errorf("the one too many is answered %d after %s", w.Code, time.Since(began))
		}
		stuck.Wait()
		if d := time.Since(began); d != 9*time.Second {
			t.Errorf("the others are answered after %s", d)
		}
		if n := f.counted(operationOther, resultOverloaded); n != 1 {
			t.Errorf("%v requests were one too many", n)
		}
	})
}

// start serves on a port of this machine. The returned function ends that, and waits for the end.
func (f *fixture) start() (addr string, end func()) {
	f.Helper()
	l, err := (&net.ListenConfig{}).Listen(f.Context(), "tcp", f.webhook.cfg.Addr)
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.webhook.serveOn(ctx, l) }()
	return l.Addr().String(), func() {
		cancel()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	}
}

func (f *fixture) client() *http.Client {
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.ca.Pool(), MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	f.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

func TestWebhook_FinishesRequestsAtStop(t *testing.T) {
	requested, send := make(chan struct{}), make(chan struct{})
	f := newFixture(t, func(context.Context, *authorizationv1.SubjectAccessReview) (bool, error) {
		close(requested)
		<-send
		return true, nil
	}, slog.New(slog.DiscardHandler))
	f.certify()
	if err := f.health.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	addr, end := f.start()
	client := f.client()
	answered := make(chan string, 1)
	go func() {
		resp, err := client.Post("https://"+addr+Path, "application/json", strings.NewReader(review("CREATE", configMap)))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		var got admissionv1.AdmissionReview
		err = json.NewDecoder(resp.Body).Decode(&got)
		answered <- fmt.Sprint(resp.Proto, " ", err, " ", got.Response != nil && got.Response.Allowed)
	}()
	<-requested
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end()
	}()
	for { // until the port accepts no new connection
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			break
		}
		c.Close()
	}
	close(send)
	if got := <-answered; got != "HTTP/1.1 <nil> true" {
		t.Errorf("the request in flight got %s", got)
	}
	<-ended
}

func TestWebhook_IsNotReadyWithoutACertificate(t *testing.T) {
	var log syncbuffer.Buffer
	f := newFixture(t, denied, slog.New(slog.NewTextHandler(&log, nil)))
	if err := f.health.Ready(); err == nil || !strings.Contains(err.Error(), "webhook: tls files cannot be used") || !strings.Contains(err.Error(), f.files.Cert) {
		t.Errorf("readiness reports %v", err)
	}
	_, end := f.start()
	end()
	if !strings.Contains(log.String(), "webhook is not ready") {
		t.Errorf("the log does not report it: %s", log.String())
	}
}

func TestWebhook_ReportsUnusableAddress(t *testing.T) {
	f := newFixture(t, denied, slog.New(slog.DiscardHandler))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f.webhook.cfg.Addr = l.Addr().String()
	if err := f.webhook.Run(t.Context()); err == nil || !strings.Contains(err.Error(), l.Addr().String()) || !strings.Contains(err.Error(), "--webhook-listen") {
		t.Errorf("ended with %v", err)
	}
}

func TestNew_RejectsLimitsUnknownToAgents(t *testing.T) {
	for _, limit := range []int{0, 512001} {
		if _, err := New(Config{Rules: admission.Rules{ManifestLimit: limit}}); err == nil || !strings.Contains(err.Error(), "512000") {
			t.Errorf("%d: %v", limit, err)
		}
	}
}

// Clients send endless bodies, headers and handshakes, keep connections idle after an answer, or send requests
// without a pause. A review from another address is still answered.
func TestWebhook_IsNotStarved(t *testing.T) {
	f := newFixture(t, func(context.Context, *authorizationv1.SubjectAccessReview) (bool, error) { return true, nil }, slog.New(slog.DiscardHandler))
	f.certify()
	addr, end := f.start()
	defer end()
	trust := &tls.Config{RootCAs: f.ca.Pool(), MinVersion: tls.VersionTLS12, ServerName: "127.0.0.1"}
	raw := func(t *testing.T, from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
		c, err := d.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	request := func(part int) string {
		body := review("CREATE", configMap)
		text := fmt.Sprintf("POST %s?timeout=10s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", Path, len(body), body)
		return text[:len(text)-part]
	}
	send := func(t *testing.T, text string) {
		t.Helper()
		if _, err := tls.Client(raw(t, "127.0.0.9"), trust).Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	honest := &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.8")}}).DialContext}
	defer honest.CloseIdleConnections()
	for name, c := range map[string]struct {
		times  int
		attack func(t *testing.T)
	}{
		"slow bodies":     {300, func(t *testing.T) { send(t, request(10)) }},
		"slow headers":    {60, func(t *testing.T) { send(t, request(0)[:40]) }},
		"slow handshakes": {600, func(t *testing.T) { raw(t, "127.0.0.9") }},
		"idle":            {60, func(t *testing.T) { send(t, request(0)) }},
	} {
		t.Run(name, func(t *testing.T) {
			for range c.times {
				c.attack(t)
			}
			for range 5 {
				began := time.Now()
				resp, err := (&http.Client{Transport: honest, Timeout: 10 * time.Second}).Post("https://"+addr+Path+"?timeout=10s", "application/json", strings.NewReader(review("CREATE", configMap)))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if took := time.Since(began); resp.StatusCode != http.StatusOK || took > 5*time.Second {
					t.Errorf("an honest review is answered %s after %s", resp.Status, took)
				}
			}
		})
	}
}
