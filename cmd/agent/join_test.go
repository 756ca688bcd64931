package main

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/kubeconfig"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/testkit"
	"github.com/hawser-io/hawser/internal/testkit/deployfiles"
	"github.com/hawser-io/hawser/internal/testkit/fakekube"
	"github.com/hawser-io/hawser/pkg/agent/registration"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/doctor"
)

// TestJoin_LoadsFilesOfDeploy: the program's loader reads the overlay's arguments, their variables exist, and
// its roles match the needs of the program.
func TestJoin_LoadsFilesOfDeploy(t *testing.T) {
	overlay, base := deployfiles.Deployment(t, "../..", "agent-registration"), deployfiles.Deployment(t, "../..", "agent")
	values, replace := map[string]string{"CLUSTER_NAME": "cluster1", "POD_IP": "127.0.0.1"}, []string{}
	for _, e := range append(base.Spec.Template.Spec.Containers[0].Env, overlay.Spec.Template.Spec.Containers[0].Env...) {
		replace = append(replace, "$("+e.Name+")", values[e.Name])
	}
	var args []string
	for _, a := range overlay.Spec.Template.Spec.Containers[0].Args {
		if a = strings.NewReplacer(replace...).Replace(a); strings.Contains(a, "$(") {
			t.Errorf("argument %s names a variable that the container does not have", a)
		}
		args = append(args, a)
	}
	cfg, err := parse(t, append(args, "--namespace=hawser")...)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.bootstrapConfig != "/etc/hawser/broker/config.yaml" || cfg.hubSecret != "hawser-agent-hub" || cfg.stateDir == "" {
		t.Errorf("%q give %+v", args, cfg)
	}
	if d, err := readDriver(flagBootstrap, "../../deploy/agent-registration/config.yaml", false); err != nil || len(d.unknown) > 0 || d.Token == "" {
		t.Errorf("config.yaml: %+v, %v", d, err)
	}
	deployfiles.CompareRights(t, "../../deploy/agent-registration/rbac.yaml", append(cfg.secretRights("hawser"), factRights...), deployfiles.Without{Objects: []string{"list clusterclaims cluster.open-cluster-management.io"}})
}

// TestJoin_Refused: invalid settings are rejected before anything starts.
func TestJoin_Refused(t *testing.T) {
	for args, want := range map[string]string{
		"--workload-source-driver=mqtt": "a cluster joins over gRPC only",
		"--insecure":                    "exclude each other",
		"--hub-kubeconfig-secret=A_b":   "hub-kubeconfig-secret \"A_b\"",
		"--hub-kubeconfig-secret=":      "hub-kubeconfig-secret \"\"",
	} {
		_, err := parse(t, "--cluster-name=c1", "--namespace=hawser", "--grpc-bootstrap-config=/x", args)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestJoining_IDOfTheFile: the id changes with the text of the file, and with the token in a named file.
// Otherwise it stays the same. An unreadable file has no id.
func TestJoining_IDOfTheFile(t *testing.T) {
	dir := t.TempDir()
	path, token := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "token")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inline := "url: broker:8090\ntoken: t\n"
	write(path, inline)
	c, err := parse(t, "--cluster-name=c1", "--namespace=hawser", "--grpc-bootstrap-config="+path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.reachBroker(prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	named := "url: broker:8090\ntokenFile: " + token + "\n"
	seen := map[string]bool{}
	for _, step := range []struct{ file, token string }{{inline, "1"}, {inline, "2"}, {named, "2"}, {named, "3"}, {named, "3"}, {inline, "3"}} {
		write(path, step.file)
		write(token, step.token)
		id, err := b.joining.bootstrapID()
		if err != nil {
			t.Fatal(err)
		}
		seen[id] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d ids of three files", len(seen))
	}
	for what, text := range map[string]string{"no configuration": "{", "a token file that is not there": "url: broker:8090\ntokenFile: /nowhere\n"} {
		write(path, text)
		if id, err := b.joining.bootstrapID(); err == nil || id != "" {
			t.Errorf("%s has the id %q", what, id)
		}
	}
}

// TestJoining_DialsWithTheCertificate: before there is a certificate, works do not dial. With it the broker
// identifies the cluster, and the token is not sent. The next dial uses a new certificate, while existing
// connections stay.
func TestJoining_DialsWithTheCertificate(t *testing.T) {
	server := testkit.StartBroker(t, testkit.Options{Port: true})
	dir := t.TempDir()
	ca, cert, key := server.CA.Write(dir, identity.Identity{Role: identity.Agent, Name: "c1"})
	path := filepath.Join(dir, "config.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("url: " + server.Addr + "\ncaFile: " + ca + "\ntoken: no-token-of-any-account\n")
	c, err := parse(t, "--cluster-name=c1", "--namespace=hawser", "--grpc-bootstrap-config="+path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.reachBroker(prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	subscribe := func() (transport.Conn, error) {
		conn, err := b.dialer.Dial(t.Context())
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = conn.Close() }) // the test closes it before, too
		ready, ended := make(chan struct{}), make(chan error, 1)
		go func() { // the test receives ended, or closes the connection at its end
			ended <- conn.Subscribe(t.Context(), transport.Subscription{Filter: transport.Filter{Cluster: "c1", DataType: codec.ManifestBundles}}, func(transport.Accepted) { close(ready) }, func(context.Context, codec.Event) error { return nil })
		}()
		select {
		case <-ready:
			return conn, nil
		case err := <-ended:
			return nil, err
		}
	}
	if _, err := subscribe(); !strings.Contains(fmt.Sprint(err), "no client certificate of its hub yet") {
		t.Fatalf("without a certificate: %v", err)
	}
	own := &registration.Credential{}
	for path, into := range map[string]*[]byte{cert: &own.Cert, key: &own.Key} {
		if *into, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	b.joining.use(own)
	b.joining.retry()
	<-b.changed()
	first, err := subscribe()
	if err != nil {
		t.Fatal(err)
	}
	b.joining.use(&registration.Credential{Cert: own.Cert, Key: own.Key})
	second, err := subscribe()
	if err != nil {
		t.Fatal(err)
	}
	if now := b.current(); now.addr != server.Addr || now.Token != "" || !now.HasCert() {
		t.Errorf("reached %s, token %t", now.addr, now.Token != "")
	}
	if err := b.joining.move(t.Context()); err != nil {
		t.Fatal(err)
	}
	var moved *transport.Error
	if _, err := first.Publish(t.Context(), codec.Event{}, ""); !errors.As(err, &moved) || moved.Next != transport.NextRefreshCredentials {
		t.Errorf("the connection with the former certificate must stay: %v", err)
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
	described, err := b.joining.described()
	if err != nil || strings.Contains(string(described), "no-token-of-any-account") || !strings.Contains(string(described), "url: "+server.Addr) {
		t.Errorf("described as %s, %v", described, err)
	}
}

// TestJoining_BrokenFile: with a broken bootstrap file, the next connection uses the current certificate and
// the previous settings. When the file is valid again, its settings apply.
func TestJoining_BrokenFile(t *testing.T) {
	ca := testkit.NewCA(t)
	own := func(name string) *registration.Credential {
		_, cert, key := ca.Write(t.TempDir(), identity.Identity{Role: identity.Agent, Name: name})
		c := &registration.Credential{}
		for path, into := range map[string]*[]byte{cert: &c.Cert, key: &c.Key} {
			var err error
			if *into, err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	dir := t.TempDir()
	caFile, _, _ := ca.Write(dir, identity.Identity{Role: identity.Agent, Name: "c0"})
	path := filepath.Join(dir, "config.yaml")
	good := "url: 127.0.0.1:1\ncaFile: " + caFile + "\ntoken: t\n"
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(path, good)
	c, err := parse(t, "--cluster-name=c1", "--namespace=hawser", "--grpc-bootstrap-config="+path)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	b, err := c.reachBroker(prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := b.trusted()
	if err != nil || len(trusted) != 1 {
		t.Fatalf("trusts %v, %v", trusted, err)
	}
	dials := func(what, addr string) {
		t.Helper()
		present := own("c1")
		b.joining.use(present)
		_, err := b.dialer.Dial(t.Context())
		if err == nil {
			t.Fatal("a program listens on port 1")
		}
		if now := b.current(); string(now.ClientCertData) != string(present.Cert) || now.addr != addr {
			t.Errorf("%s: reached %s, with the present certificate: %t", what, now.addr, string(now.ClientCertData) == string(present.Cert))
		}
		if now, err := b.trusted(); err != nil || !slices.Equal(now, trusted) {
			t.Errorf("%s: trusts %v, %v", what, now, err)
		}
	}
	dials("a good file", "127.0.0.1:1")
	authority, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(){
		"no token":        func() { write(path, strings.ReplaceAll(good, "token: t\n", "")) },
		"no text":         func() { write(path, "{") },
		"no CA":           func() { write(caFile, "no PEM") },
		"another address": func() { write(path, strings.ReplaceAll(good, "127.0.0.1:1", "127.0.0.1:2")) }, // without --hub-identity
		"no file":         func() { _ = os.Remove(path) },                                                 // written again below
	} {
		spoil()
		log.Reset()
		dials(what, "127.0.0.1:1")
		dials(what, "127.0.0.1:1")
		if n := strings.Count(log.String(), "its previous content stays in use"); n != 1 {
			t.Errorf("%s: logged %d times: %s", what, n, log.String())
		}
		write(path, good)
		write(caFile, string(authority))
		dials("good again", "127.0.0.1:1")
	}
}

// TestDoctor_ConnectsAsJoiningAgent: the doctor connects as the agent does: with the certificate in the Secret
// or, without one, with the token.
func TestDoctor_ConnectsAsJoiningAgent(t *testing.T) {
	subject := ocm.Subject{Cluster: "c1", Agent: "a"}
	otherKey, _, err := registration.NewKey(subject)
	if err != nil {
		t.Fatal(err)
	}
	pair := testkit.NewCA(t).Sign(x509.Certificate{Subject: pkix.Name{CommonName: subject.CommonName(), Organization: subject.Organizations()}})
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	secret := corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Data: registration.SavedState{Cluster: "c1", Agent: "a", Hub: "hub1"}.Data()}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/namespaces/hawser/secrets/s" {
			t.Errorf("a request for %s", r.URL.Path)
		}
		_ = json.NewEncoder(w).Encode(secret) // on an error the client fails
	}))
	defer api.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := write("kubeconfig", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: "+api.URL+"}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n")
	file := write("config.yaml", "url: 127.0.0.1:1\ntoken: some-token\n")
	c, err := parse(t, "--cluster-name=c1", "--namespace=hawser", "--grpc-bootstrap-config="+file, "--hub-kubeconfig-secret=s", "--spoke-kubeconfig="+path)
	if err != nil {
		t.Fatal(err)
	}
	look := func() (doctor.Path, doctor.Subscriber) {
		t.Helper()
		var w doctor.Path
		queries, err := c.wayToBroker(t.Context(), "hawser", &w)
		if err != nil {
			t.Fatal(err)
		}
		return w, queries
	}
	if w, requests := look(); w.Identity.Token == "" || requests.DataType != codec.ManagedClusters {
		t.Errorf("before it is registered: token %t, %s", w.Identity.Token != "", requests.DataType)
	}
	secret.Data["tls.crt"], secret.Data["tls.key"] = cert, otherKey
	if w, _ := look(); w.Identity.Token == "" {
		t.Error("a certificate counts that does not fit its key")
	}
	secret.Data["tls.key"] = key
	w, requestArgs := look()
	if w.Identity.Token != "" || string(w.Identity.ClientCertData) != string(cert) || requestArgs.DataType != codec.ManifestBundles {
		t.Errorf("registered: token %t, %s", w.Identity.Token != "", requestArgs.DataType)
	}
}

// roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestJoin_Hosted checks an agent in a pod of another cluster. It stores the key of its hub next to the pod,
// and its doctor checks the rights there. This is independent of how it reaches its managed cluster. For a pod
// on the managed cluster, and outside of a cluster, the key is in the namespace of the agent.
func TestJoin_Hosted(t *testing.T) {
	dir := t.TempDir()
	forbidding := fakekube.Start(t, nil, "get secrets")
	hosting, managed := fakekube.Start(t, nil), fakekube.Start(t, []string{"appliedmanifestworks"})
	requested := "" // the last requested path
	remember := func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			requested = r.URL.String()
			return next.RoundTrip(r)
		})
	}
	loads := func(s *fakekube.Server, token string) *rest.Config {
		r, err := kubeconfig.Load(s.Kubeconfig(dir, "k", token), "k")
		if err != nil {
			t.Fatal(err)
		}
		r.Wrap(remember)
		return r
	}
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte("url: 127.0.0.1:1\ntoken: t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	spoke := managed.Kubeconfig(dir, "managed", "full")
	t.Setenv("KUBECONFIG", spoke)
	for _, flag := range []string{"", spoke} {
		for name, tc := range map[string]struct {
			pod   *rest.Config // nil: no pod
			where *rest.Config
			want  string // the expected output of the doctor
		}{
			"hosted":                {loads(hosting, "full"), loads(hosting, "full"), ""},
			"hosted without rights": {loads(forbidding, "few"), loads(forbidding, "few"), "does not let us get secrets s in namespace pods"},
			"in its own cluster":    {loads(managed, "full"), loads(managed, "full"), ""},
			"no pod":                {nil, loads(managed, "full"), ""},
		} {
			c, err := parse(t, "--cluster-name=c1", "--namespace=hawser", "--grpc-bootstrap-config="+file, "--hub-kubeconfig-secret=s", "--spoke-kubeconfig="+flag)
			if err != nil {
				t.Fatal(err)
			}
			c.pod = func() (*rest.Config, string, error) {
				if tc.pod == nil {
					return nil, "", rest.ErrNotInCluster
				}
				return tc.pod, "pods", nil
			}
			r, err := c.cluster()
			if err != nil {
				t.Fatal(err)
			}
			r.Wrap(remember)
			store, err := c.openSecret(r, "hawser")
			if err != nil {
				t.Fatal(err)
			}
			namespace := "hawser"
			if tc.where.Host != r.Host {
				namespace = "pods"
			}
			want := fmt.Sprintf("%s/api/v1/namespaces/%s/secrets/s", tc.where.Host, namespace)
			if data, err := store.Load(t.Context()); data != nil || err != nil || requested != want {
				t.Errorf("%s, flag %t: %v, %v, requested %s, want %s", name, flag != "", data, err, requested, want)
			}
			checks := c.checks("hawser")
			here := slices.ContainsFunc(checks[0].Rights, func(r kubeconfig.Right) bool { return r.Resource == "secrets" })
			if here != (namespace == "hawser") || here != (len(checks) == 1) {
				t.Errorf("%s, flag %t: the doctor checks rights to Secrets of the managed cluster: %t, and %d clusters", name, flag != "", here, len(checks))
			}
			var wrong error
			for _, check := range checks[1:] {
				for _, step := range check.Steps() {
					if _, err := step.Look(t.Context()); err != nil {
						wrong = errors.Join(wrong, err)
					}
				}
			}
			if tc.want == "" && wrong != nil || !strings.Contains(fmt.Sprint(wrong), tc.want) {
				t.Errorf("%s, flag %t: the doctor reports %v, want %q", name, flag != "", wrong, tc.want)
			}
		}
	}
}

// TestProcess_RegistrationReady: an agent that does not register itself is ready. One that registers itself is
// ready only after its registration has begun.
func TestProcess_RegistrationReady(t *testing.T) {
	p := &process{cfg: &config{}}
	if err := p.registrationReady(); err != nil {
		t.Error(err)
	}
	p.cfg.bootstrapConfig = "/x"
	if err := p.registrationReady(); err == nil {
		t.Error("it is ready before it has begun")
	}
}
