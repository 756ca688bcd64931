package install

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

var (
	epoch  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	wanted = Settings{Address: "broker.example.com:8090", Images: images}
)

// plane is a cluster whose controllers carry out each change at once, unless it is stuck.
type plane struct {
	*clustertest.Fake
	stuck  bool
	output []string
}

func newPlane() *plane { return &plane{Fake: clustertest.New()} }

func (p *plane) ServerSideApply(ctx context.Context, gvr schema.GroupVersionResource, o *unstructured.Unstructured, by kubeclient.FieldManager) (*unstructured.Unstructured, error) {
	is, err := p.Fake.ServerSideApply(ctx, gvr, o, by)
	if err != nil || p.stuck {
		return is, err
	}
	ref := kubeclient.Ref{GroupVersionResource: gvr, Namespace: o.GetNamespace(), Name: o.GetName()}
	switch o.GetKind() {
	case "Deployment":
		n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		return p.Patch(ctx, ref, fmt.Appendf(nil, `{"status": {"observedGeneration": %d, "replicas": %d, "updatedReplicas": %[2]d, "availableReplicas": %[2]d}}`, is.GetGeneration(), n), "status")
	case "CustomResourceDefinition":
		return p.Patch(ctx, ref, []byte(served), "status")
	}
	return is, nil
}

const served = `{"status": {"conditions": [{"type": "Established", "status": "True"}]}}`

func (p *plane) installer() Installer {
	return Installer{Client: p, List: p.Metadata, Printf: func(format string, args ...any) { p.output = append(p.output, fmt.Sprintf(format, args...)) }}
}

// content returns all existing objects, by their names for display.
func (p *plane) content() map[string]string {
	all := map[string]string{}
	for _, ref := range p.Refs() {
		o := p.Look(ref)
		all[ref.String()] = fmt.Sprint(o.Object["data"], o.Object["spec"], o.Object["rules"], o.GetLabels())
	}
	return all
}

func (p *plane) secret(t *testing.T, name string) map[string][]byte {
	t.Helper()
	data, err := readSecret(t.Context(), p, name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (p *plane) operator(t *testing.T) map[string][]byte {
	t.Helper()
	data, err := Operator(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// planned returns the data that a plan puts into a Secret.
func planned(t *testing.T, p Plan, name string) map[string][]byte {
	t.Helper()
	for _, o := range p.Objects {
		if o.GetKind() == "Secret" && o.GetName() == name {
			data, err := dataOf(o)
			if err != nil {
				t.Fatal(err)
			}
			return data
		}
	}
	t.Fatalf("the plan has no Secret %s", name)
	return nil
}

func (p *plane) installHub(t *testing.T, s Settings, now time.Time) Plan {
	t.Helper()
	plan, err := Hub(t.Context(), p, s, now)
	if err == nil {
		err = p.installer().Apply(t.Context(), plan)
	}
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func (p *plane) installCluster(t *testing.T, hub *plane, name string) {
	t.Helper()
	plan, err := Cluster(t.Context(), Managed{Name: name, Hub: hub, Client: p}, epoch)
	if err == nil {
		err = p.installer().Apply(t.Context(), plan)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A second run keeps authority and certificates, and changes nothing.
func TestHub_TwiceIsHarmless(t *testing.T) {
	hub := newPlane()
	hub.installHub(t, wanted, epoch)
	before := hub.content()
	if len(before) < 25 {
		t.Fatalf("only %v was made", slices.Sorted(maps.Keys(before)))
	}
	hub.output = nil
	p := hub.installHub(t, Settings{}, epoch.Add(24*time.Hour)) // the settings come from the hub
	if diff := cmp.Diff(before, hub.content()); diff != "" {
		t.Errorf("the second run changed (-before +after):\n%s", diff)
	}
	for _, line := range hub.output {
		if !strings.HasSuffix(line, " unchanged") && !strings.HasSuffix(line, " exists and is not changed") {
			t.Errorf("the second run printed %q", line)
		}
	}
	if p.Settings.Address != wanted.Address || p.Settings.Images != images || p.Settings.HubIdentity == "" {
		t.Errorf("settings %+v, want those of the first run", p.Settings)
	}
	if operator := hub.operator(t); string(operator[caKey]) != string(hub.secret(t, authoritySecret)[certKey]) || len(operator[keyKey]) == 0 {
		t.Error("the operator's access is not signed by the authority of the hub")
	}
}

// The webhook rejects works while no hub-source runs. So it is applied last, with the CA that signs its
// certificate.
func TestHub_WebhookComesWhenTheProgramsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := newPlane()
		p, err := Hub(t.Context(), hub, wanted, epoch)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Last) != 1 || p.Last[0].GetKind() != "ValidatingWebhookConfiguration" || p.Last[0].GetAnnotations()["cert-manager.io/inject-ca-from"] != "" || p.Last[0].GetAnnotations()["kubernetes.io/description"] == "" {
			t.Fatalf("last comes %v", p.Last)
		}
		webhooks, _, err := unstructured.NestedSlice(p.Last[0].Object, "webhooks")
		if err != nil || len(webhooks) != 1 {
			t.Fatal(webhooks, err)
		}
		if ca := webhooks[0].(map[string]any)["clientConfig"].(map[string]any)["caBundle"]; ca != base64Of(planned(t, p, authoritySecret)[certKey]) {
			t.Errorf("caBundle %v is not the authority", ca)
		}
		for _, o := range p.Objects { // the definitions are served, and the Deployments do not start
			if o.GetKind() == "CustomResourceDefinition" {
				hub.Put(o)
				ref, err := refOf(t.Context(), hub, o)
				if err == nil {
					_, err = hub.Patch(t.Context(), ref, []byte(served), "status")
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		hub.stuck = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = hub.installer().Apply(ctx, p)
		var hinted interface{ Hint() string }
		if err == nil || !strings.Contains(err.Error(), "waited for deployment.apps/hawser-broker: it has not been processed by its controller") ||
			!errors.As(err, &hinted) || !strings.HasSuffix(hinted.Hint(), "describe pods -l app.kubernetes.io/name=hawser-broker") {
			t.Errorf("error %v", err)
		}
		if !slices.Contains(hub.output, "waiting for deployment.apps/hawser-broker: has not been processed by its controller") {
			t.Errorf("printed %q", hub.output)
		}
		for ref := range hub.content() {
			if strings.HasPrefix(ref, "validatingwebhookconfigurations") {
				t.Errorf("%s is there before its program", ref)
			}
		}
	})
}

// Only certificates that need a renewal are issued again.
func TestHub_RenewsDueLeases(t *testing.T) {
	secrets := []string{authoritySecret, brokerSecret, sourceSecret, webhookSecret, operatorSecret}
	elsewhere := wanted
	elsewhere.Address = "192.0.2.7:443"
	for name, c := range map[string]struct {
		settings Settings
		after    time.Duration
		renewed  []string
	}{
		"in the first two thirds":   {Settings{}, 240 * 24 * time.Hour, nil},
		"in the last third":         {Settings{}, 250 * 24 * time.Hour, []string{brokerSecret, sourceSecret, webhookSecret, operatorSecret}},
		"the broker goes elsewhere": {elsewhere, time.Hour, []string{brokerSecret}},
	} {
		t.Run(name, func(t *testing.T) {
			hub := newPlane()
			hub.installHub(t, wanted, epoch)
			before := map[string]string{}
			for _, s := range secrets {
				before[s] = string(hub.secret(t, s)[certKey])
			}
			hub.installHub(t, c.settings, epoch.Add(c.after))
			var renewed []string
			for _, s := range secrets {
				if string(hub.secret(t, s)[certKey]) != before[s] {
					renewed = append(renewed, s)
				}
			}
			if !slices.Equal(renewed, c.renewed) {
				t.Errorf("renewed %v, want %v", renewed, c.renewed)
			}
		})
	}
}

func TestHub_ErrorNamesMissingPart(t *testing.T) {
	for want, s := range map[string]Settings{
		"--address is not set":           {Images: images},
		"--address broker.example.com":   {Address: "broker.example.com", Images: images},
		"--image-registry is not set":    {Address: wanted.Address},
		"--image-version is not set, an": {Address: wanted.Address, Images: Images{Registry: "r"}},
	} {
		if _, err := Hub(t.Context(), newPlane(), s, epoch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	_, err := Hub(t.Context(), newPlane(), Settings{}, epoch)
	if err == nil || strings.Count(err.Error(), " is not set") != 3 {
		t.Errorf("%v, want all that is missing", err)
	}
	if _, err := Installed(t.Context(), newPlane(), epoch); err == nil || !strings.Contains(err.Error(), "is this the right --context") {
		t.Errorf("a cluster without a hub: %v", err)
	}
}

// Certificates of another CA, which all agents trust, are never replaced.
func TestHub_LeavesAForeignAuthorityAlone(t *testing.T) {
	hub := newPlane()
	hub.Put(object("v1", "Namespace", "", namespace))
	hub.Put(secretOf(brokerSecret, map[string][]byte{caKey: []byte("ours")}))
	_, err := Hub(t.Context(), hub, wanted, epoch)
	if err == nil || !strings.Contains(err.Error(), "was not made by hawser install") {
		t.Errorf("error %v", err)
	}
}

// A CA that an operator has provided signs, in a Secret of any type.
func TestHub_UsesExistingAuthority(t *testing.T) {
	hub := newPlane()
	own, err := pki.NewAuthority("own", pki.Starting(epoch, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	s := secretOf(authoritySecret, map[string][]byte{certKey: own.CertificatePEM(), keyKey: own.KeyPEM()})
	s.Object["type"] = "kubernetes.io/tls"
	hub.Put(object("v1", "Namespace", "", namespace))
	hub.Put(s)
	hub.installHub(t, wanted, epoch)
	if string(hub.operator(t)[caKey]) != string(own.CertificatePEM()) {
		t.Error("another authority signs")
	}
}

// Objects and fields of others stay: a definition of Open Cluster Management, and a volume that was enlarged.
func TestApply_KeepsFieldsOfOthers(t *testing.T) {
	hub := newPlane()
	hub.Put(object("v1", "Namespace", "", namespace))
	theirs := object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "manifestworks.work.open-cluster-management.io", "spec", map[string]any{"group": "theirs"})
	hub.Put(theirs)
	volume := object("v1", "PersistentVolumeClaim", namespace, "hawser-broker", "spec", map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": "1Ti"}}})
	hub.Put(volume)
	hub.installHub(t, wanted, epoch)
	for _, o := range []*unstructured.Unstructured{theirs, volume} {
		have, err := get(t.Context(), hub, o)
		if err != nil || ours(have) {
			t.Errorf("%s is %v, %v", nameOf(o), have, err)
		}
		if line := nameOf(o) + " exists and is not changed"; !slices.Contains(hub.output, line) {
			t.Errorf("printed %q, want %q", hub.output, line)
		}
	}
}

// A cluster gets a certificate with its name, the address of the hub's broker, and the hub's images. A second
// run changes nothing.
func TestCluster_GetsWorksOfItsHub(t *testing.T) {
	hub, spoke := newPlane(), newPlane()
	hub.installHub(t, wanted, epoch)
	spoke.installCluster(t, hub, "cluster1")
	s := spoke.secret(t, agentSecret)
	c := certificates{now: epoch}
	var err error
	if c.authority, err = readAuthority(t.Context(), hub); err != nil {
		t.Fatal(err)
	}
	if !c.good(s, pki.Request{Role: pki.Agent, Name: "cluster1"}) {
		t.Error("the certificate is not cluster1's")
	}
	identity, _, err := readSettings(t.Context(), hub)
	if err != nil {
		t.Fatal(err)
	}
	if string(s["cluster-name"]) != "cluster1" || string(s["hub-identity"]) != identity.HubIdentity || !strings.Contains(string(s["config.yaml"]), "\nurl: broker.example.com:8090\n") {
		t.Errorf("the agent gets %s, %s, %s", s["cluster-name"], s["hub-identity"], s["config.yaml"])
	}
	before := spoke.content()
	spoke.installCluster(t, hub, "cluster1")
	if diff := cmp.Diff(before, spoke.content()); diff != "" {
		t.Errorf("the second run changed (-before +after):\n%s", diff)
	}
}

// An installation by hand keeps its hub identity, because the objects on the cluster belong to it.
func TestCluster_KeepsItsHubIdentity(t *testing.T) {
	hub, spoke := newPlane(), newPlane()
	hub.installHub(t, wanted, epoch)
	spoke.Put(object("v1", "Namespace", "", namespace))
	spoke.Put(secretOf(agentSecret, map[string][]byte{"cluster-name": []byte("cluster1"), "hub-identity": []byte("hub1"), caKey: hub.secret(t, authoritySecret)[certKey]}))
	spoke.installCluster(t, hub, "cluster1")
	if got := string(spoke.secret(t, agentSecret)["hub-identity"]); got != "hub1" {
		t.Errorf("hub identity %q, want the former one", got)
	}
}

func TestCluster_Refusals(t *testing.T) {
	hub, spoke := newPlane(), newPlane()
	refused := func(name, want string) {
		t.Helper()
		if _, err := Cluster(t.Context(), Managed{Name: name, Hub: hub, Client: spoke}, epoch); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("cluster %s: %v, want %q", name, err, want)
		}
	}
	refused("Cluster_1", `cluster "Cluster_1"`)
	refused("cluster1", "run hawser install hub first")
	hub.installHub(t, wanted, epoch)
	spoke.installCluster(t, hub, "cluster1")
	refused("cluster2", "this cluster is installed as cluster1")
	hub = newPlane()
	hub.installHub(t, wanted, epoch)
	refused("cluster1", "trusts another CA than this hub's")
}

// Objects of an earlier version that this one no longer has are deleted at the end. Objects of others and
// objects with data stay. A dry run reports the same.
func TestApply_DeletesUnneededObjects(t *testing.T) {
	hub := newPlane()
	old := hub.installHub(t, wanted, epoch)
	config := object("v1", "ConfigMap", namespace, "hawser-broker-config-old")
	role := object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "hawser-of-an-earlier-version")
	lasting := []*unstructured.Unstructured{
		object("v1", "Secret", namespace, "hawser-of-an-earlier-version"),
		object("v1", "PersistentVolumeClaim", namespace, "hawser-of-an-earlier-version"),
		object("v1", "Namespace", "", "hawser-of-an-earlier-version"),
	}
	old.take(slices.Concat(lasting, []*unstructured.Unstructured{config, role}))
	if err := hub.installer().Apply(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	hub.installCluster(t, hub, "local") // another manager with the same label
	if err := hub.installer().Apply(t.Context(), OnHub("local")); err != nil {
		t.Fatal(err)
	}
	mine := object("v1", "ConfigMap", namespace, "mine")
	label(mine, map[string]string{managedBy: managedByUs}) // a copy with all labels
	hub.Put(mine)
	before := hub.content()

	hub.output = nil
	p, err := Hub(t.Context(), hub, Settings{}, epoch)
	if err == nil {
		err = hub.installer().DryRun(t.Context(), p)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []*unstructured.Unstructured{config, role} {
		if !slices.Contains(hub.output, nameOf(o)+" would be deleted: an earlier run made it, and it is not needed any more") {
			t.Errorf("the dry run printed %q", hub.output)
		}
	}
	if diff := cmp.Diff(before, hub.content()); diff != "" {
		t.Errorf("the dry run changed (-before +after):\n%s", diff)
	}
	hub.installHub(t, Settings{}, epoch)
	delete(before, "configmaps hawser/hawser-broker-config-old")
	delete(before, "clusterroles.rbac.authorization.k8s.io hawser-of-an-earlier-version")
	if diff := cmp.Diff(before, hub.content()); diff != "" {
		t.Errorf("the next run left (-want +got):\n%s", diff)
	}
}

// A program runs when all pods of the applied version are ready, and no pod of another version is left.
func TestRunning_ErrorNamesMissingPart(t *testing.T) {
	for want, status := range map[string]map[string]any{
		"has not been processed by its controller": {"observedGeneration": int64(1), "replicas": int64(2), "updatedReplicas": int64(2), "availableReplicas": int64(2)},
		"has 1 of 2 pods of this version":          {"observedGeneration": int64(2), "replicas": int64(3), "updatedReplicas": int64(1), "availableReplicas": int64(2)},
		"has 1 of 2 pods ready":                    {"observedGeneration": int64(2), "replicas": int64(2), "updatedReplicas": int64(2), "availableReplicas": int64(1)},
		"has pods of another version":              {"observedGeneration": int64(2), "replicas": int64(3), "updatedReplicas": int64(2), "availableReplicas": int64(3)},
		"":                                         {"observedGeneration": int64(2), "replicas": int64(2), "updatedReplicas": int64(2), "availableReplicas": int64(2)},
	} {
		d := object("apps/v1", "Deployment", namespace, "hawser-hub-source", "spec", map[string]any{"replicas": int64(2)}, "status", status)
		d.SetGeneration(2)
		if got := running(d); got != want {
			t.Errorf("%v: %q, want %q", status, got, want)
		}
	}
}
