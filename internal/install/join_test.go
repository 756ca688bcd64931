package install

import (
	"encoding/pem"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func newBootstrap(t *testing.T) Bootstrap {
	t.Helper()
	a, err := pki.NewAuthority("test", pki.Starting(epoch, pki.AuthorityLifetime))
	if err != nil {
		t.Fatal(err)
	}
	return Bootstrap{Broker: "broker.example.com:8090", CA: a.CertificatePEM(), Token: "abc.def.ghi"}
}

// TestBootstrap_Check: one error names all invalid values before anything is applied.
func TestBootstrap_Check(t *testing.T) {
	good := newBootstrap(t)
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		change func(*Bootstrap)
		want   []string
	}{
		"nothing":        {func(b *Bootstrap) { *b = Bootstrap{} }, []string{"--broker is", "--broker-ca is", "--token-file"}},
		"no port":        {func(b *Bootstrap) { b.Broker = "broker" }, []string{"use host:port"}},
		"no certificate": {func(b *Bootstrap) { b.CA = []byte("x") }, []string{"no PEM certificate"}},
		"a key beside it": {func(b *Bootstrap) {
			b.CA = append(b.CA, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte{1}})...)
		}, []string{"no PEM certificate"}},
		"two tokens":         {func(b *Bootstrap) { b.Token = "a b" }, []string{"characters that no token has"}},
		"a token and a line": {func(b *Bootstrap) { b.Token = "a\nurl: evil:1" }, []string{"characters that no token has"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := good
			b.CA = append([]byte(nil), good.CA...)
			c.change(&b)
			err := b.check()
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %q", err, want)
				}
			}
		})
	}
}

// TestJoin_Klusterlet: a klusterlet finds its bootstrap data. It detects another hub exactly when the address
// or the CA of the broker changes.
func TestJoin_Klusterlet(t *testing.T) {
	b := newBootstrap(t)
	read := func(b Bootstrap) (hub string, config map[string]any) {
		t.Helper()
		p, err := Join{Name: "spoke", Bootstrap: b}.Klusterlet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		data := planned(t, p, klusterletSecret)
		kubeconfig, err := clientcmd.Load(data["kubeconfig"])
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data["kubeconfig"]), b.Token) {
			t.Error("the token is in the kubeconfig, whose programs send it to a kube-apiserver")
		}
		if err := sigsyaml.Unmarshal(data["config.yaml"], &config); err != nil {
			t.Fatal(err)
		}
		rest, err := clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig()
		if err != nil || rest.Host != "https://"+b.Broker {
			t.Errorf("the kubeconfig leads to %v, %v", rest, err)
		}
		return kubeconfig.Contexts[kubeconfig.CurrentContext].Cluster, config
	}
	hub, config := read(b)
	if config["url"] != b.Broker || config["token"] != b.Token || config["caData"] != base64Of(b.CA) || len(config) != 3 {
		t.Errorf("config.yaml has %v", config)
	}
	for name, c := range map[string]struct {
		change func(*Bootstrap)
		same   bool
	}{
		"another token":     {func(b *Bootstrap) { b.Token = "xxx.yyy.zzz" }, true},
		"another address":   {func(b *Bootstrap) { b.Broker = "other.example.com:8090" }, false},
		"another authority": {func(b *Bootstrap) { b.CA = newBootstrap(t).CA }, false},
	} {
		other := b
		c.change(&other)
		if got, _ := read(other); (got == hub) != c.same {
			t.Errorf("%s: hub %s, before %s", name, got, hub)
		}
	}
}

// TestJoin_Identity: the objects on a cluster belong to one identity of the hub, for ever.
func TestJoin_Identity(t *testing.T) {
	secret := func(name, cluster, identity string) *unstructured.Unstructured {
		return secretOf(name, map[string][]byte{"cluster-name": []byte(cluster), "hub-identity": []byte(identity)})
	}
	for name, c := range map[string]struct {
		have        *unstructured.Unstructured
		given       string
		want, wrong string
	}{
		"new":                          {want: "broker.example.com:8090"},
		"new, and given":               {given: "north", want: "north"},
		"as it was":                    {have: secret(bootstrapSecret, "spoke", "north"), want: "north"},
		"as it was installed":          {have: secret(agentSecret, "spoke", "north"), want: "north"},
		"as it was, and given":         {have: secret(agentSecret, "spoke", "north"), given: "north", want: "north"},
		"another than it was":          {have: secret(agentSecret, "spoke", "north"), given: "south", wrong: "belong to the hub north, not to south"},
		"a cluster of another name":    {have: secret(bootstrapSecret, "other", "north"), wrong: "this cluster joined as other"},
		"installed under another name": {have: secret(agentSecret, "other", "north"), wrong: "this cluster joined as other"},
		"a Secret without identity":    {have: secretOf(agentSecret, nil), want: "broker.example.com:8090"},
	} {
		t.Run(name, func(t *testing.T) {
			f := clustertest.New()
			f.Put(clustertest.Object("v1", "Namespace", "", namespace))
			if c.have != nil {
				f.Put(c.have)
			}
			got, err := Join{Name: "spoke", Bootstrap: newBootstrap(t), HubIdentity: c.given, Client: f}.identity(t.Context())
			if got != c.want || (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("identity %q, %v; want %q, %q", got, err, c.want, c.wrong)
			}
		})
	}
}

// TestJoin_Joined: the user who waits sees each missing step.
func TestJoin_Joined(t *testing.T) {
	f := clustertest.New()
	f.Put(clustertest.Object("v1", "Namespace", "", namespace))
	j := Join{Name: "spoke", Client: f}
	step := func(want string, o *unstructured.Unstructured) {
		t.Helper()
		if o != nil {
			f.Put(o)
		}
		got, err := j.Joined(t.Context(), false)
		if err != nil || !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("it waits for %q, %v; want %q", got, err, want)
		}
	}
	step("it has to request a certificate", nil)
	step("the hub has to approve its certificate request spoke-abcde: hawser accept spoke", secretOf(registeredSecret, map[string][]byte{"pending-name": []byte("spoke-abcde")}))
	step("no Deployment", secretOf(registeredSecret, map[string][]byte{certKey: []byte("x")}))
	agent := object("apps/v1", "Deployment", namespace, "hawser-agent", "spec", map[string]any{"replicas": int64(1)})
	step("the hub has to accept it", agent)
	ref := f.Ref("apps/v1", "Deployment", namespace, "hawser-agent")
	if _, err := f.Patch(t.Context(), ref, []byte(`{"status": {"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}}`), "status"); err != nil {
		t.Fatal(err)
	}
	step("", nil)
}

// TestJoin_JoinedKlusterlet: a klusterlet that moves has the certificate of its former hub until this hub
// issues one.
func TestJoin_JoinedKlusterlet(t *testing.T) {
	f := clustertest.New()
	f.Put(clustertest.Object("v1", "Namespace", "", klusterletNamespace))
	j := Join{Name: "spoke", Client: f, Bootstrap: Bootstrap{Broker: "broker.example:8090", CA: []byte("ca"), Token: "t"}}
	former := j.Bootstrap
	former.Broker = "other.example:8090"
	secret := func(b Bootstrap) *unstructured.Unstructured {
		kubeconfig, err := b.kubeconfig()
		if err != nil {
			t.Fatal(err)
		}
		o := secretOf("hub-kubeconfig-secret", map[string][]byte{certKey: []byte("x"), "kubeconfig": kubeconfig})
		o.SetNamespace(klusterletNamespace)
		return o
	}
	for _, c := range []struct {
		have *unstructured.Unstructured
		want string
	}{
		{nil, "it has to request a certificate"},
		{secret(former), "it still has the certificate of the hub \"" + former.hub() + "\""},
		{secret(j.Bootstrap), ""},
	} {
		if c.have != nil {
			f.Put(c.have)
		}
		got, err := j.Joined(t.Context(), true)
		if err != nil || !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("it waits for %q, %v; want %q", got, err, c.want)
		}
	}
}
