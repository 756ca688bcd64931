package manifestwork

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/apply"
	agentcluster "github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/test/e2e/harness"
)

// TestExecutor_LabelGivesNothingAway: a label grants rights if a role aggregates by it. An executor that may
// write ClusterRoles cannot apply only the label to a role with more rights than its own.
func TestExecutor_LabelGivesNothingAway(t *testing.T) {
	t.Parallel()
	f := shared
	ns := f.NamespaceOn(t, cluster)
	api := f.API[cluster].Kube.RbacV1()
	label := ns + "-aggregate"
	clusterRole(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: ns + "-strong"}, Rules: []rbacv1.PolicyRule{coreRule([]string{"*"}, "secrets")}})
	clusterRole(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: ns + "-sum"}, AggregationRule: &rbacv1.AggregationRule{
		ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{label: "true"}}},
	}})
	grantEverywhere(t, ns, everyRBAC)
	w := in(ns, harness.NewWork(t, cluster, "executor-label", fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: %s-strong, labels: {%s: 'true'}}\n", ns, label)))
	w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	for _, force := range []bool{false, true} {
		strategy := workv1.UpdateStrategy{Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: &workv1.ServerSideApplyConfig{Force: force}}
		config := []workv1.ManifestConfigOption{{ResourceIdentifier: workv1.ResourceIdentifier{Group: rbacv1.GroupName, Resource: "clusterroles", Name: "*"}, UpdateStrategy: &strategy}}
		if force {
			w = f.Update(t, cluster, w.Name, func(w *workv1.ManifestWork) { w.Spec.ManifestConfigs = config })
		} else {
			w.Spec.ManifestConfigs = config
			w = f.Create(t, w)
		}
		appliedReports(t, w, escalation("clusterroles", "", ns+"-strong"))
	}
	for _, name := range []string{"-strong", "-sum"} {
		r, err := api.ClusterRoles().Get(t.Context(), ns+name, metav1.GetOptions{})
		if err != nil || r.Labels[label] != "" || name == "-sum" && len(r.Rules) > 0 {
			t.Errorf("%s: got %+v, %v; want it to be as it was", ns+name, r, err)
		}
	}
}

// TestExecutor_MakesNoRequestInTheNameOfTheAgent: a certificate request contains the name of its creator, and
// that name decides about the approval. With an executor the creator would be the agent, which has
// all rights in this test.
func TestExecutor_MakesNoRequestInTheNameOfTheAgent(t *testing.T) {
	t.Parallel()
	ns := shared.NamespaceOn(t, cluster)
	rule := rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}, Verbs: owning}
	grantEverywhere(t, ns, rule)
	clusterRole(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: ns + "-agent", Labels: map[string]string{"open-cluster-management.io/aggregate-to-work": "true"}}, Rules: []rbacv1.PolicyRule{rule}})
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(cryptorand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}))
	w := shared.Create(t, in(ns, harness.NewWork(t, cluster, "executor-csr", fmt.Sprintf("apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {name: %s}\nspec: {signerName: example.com/a, request: %s, usages: [client auth]}\n", ns, text))))
	appliedReports(t, w, strings.Replace(escalation("certificatesigningrequests", "", ns), rbacv1.GroupName, "certificates.k8s.io", 1))
	if r, err := shared.API[cluster].Kube.CertificatesV1().CertificateSigningRequests().Get(t.Context(), ns, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %+v, %v; want no request", r.Spec, err)
	}
}

// envAccounts is the environment variable for the number of accounts.
const envAccounts = "ACCOUNTS"

// TestExecutor_ResultIsTheServers plays accounts with random rights, objects and manifests. The result for a
// manifest must equal the kube-apiserver's answer to the same write by the account itself. The account writes a
// twin of the object. ACCOUNTS=n plays n accounts; a seed is the number of one account.
func TestExecutor_ResultIsTheServers(t *testing.T) {
	t.Parallel()
	accounts := 5
	if s := os.Getenv(envAccounts); s != "" {
		var err error
		if accounts, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]int{}
	for seed := range accounts {
		t.Run(fmt.Sprintf("seed-%d", seed), func(t *testing.T) { playResults(t, uint64(seed), seen) })
	}
	t.Logf("results: %v", seen)
	for _, kind := range []string{"denied", "escalation", "applied"} {
		if seen[kind] == 0 {
			t.Errorf("no manifest was %s: the test shows nothing", kind)
		}
	}
}

// results is one random account with its rights.
type results struct {
	*testing.T
	*rand.Rand
	ns    string
	rules []rbacv1.PolicyRule // in its namespace, and on the cluster
}

var (
	resultKinds = []struct {
		apiVersion, kind, group, resource string
		namespaced                        bool
	}{
		{"v1", "ConfigMap", "", "configmaps", true},
		{"v1", "Secret", "", "secrets", true},
		{"rbac.authorization.k8s.io/v1", "Role", rbacv1.GroupName, "roles", true},
		{"rbac.authorization.k8s.io/v1", "RoleBinding", rbacv1.GroupName, "rolebindings", true},
		{"rbac.authorization.k8s.io/v1", "ClusterRole", rbacv1.GroupName, "clusterroles", false},
		{"rbac.authorization.k8s.io/v1", "ClusterRoleBinding", rbacv1.GroupName, "clusterrolebindings", false},
	}
	resultStrategies = []workv1.UpdateStrategy{
		{Type: workv1.UpdateStrategyTypeUpdate}, {Type: workv1.UpdateStrategyTypeUpdate},
		{Type: workv1.UpdateStrategyTypeCreateOnly},
		{Type: workv1.UpdateStrategyTypeReadOnly},
		{Type: workv1.UpdateStrategyTypeServerSideApply},
		{Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: &workv1.ServerSideApplyConfig{Force: true, FieldManager: "work-agent-other"}},
		{Type: workv1.UpdateStrategyTypeServerSideApply, ServerSideApply: &workv1.ServerSideApplyConfig{Force: true, IgnoreFields: []workv1.IgnoreField{
			{Condition: workv1.IgnoreFieldsConditionOnSpokePresent, JSONPaths: []string{".rules"}},
		}}},
	}
)

// manifestsEach is the number of manifests of each account.
const manifestsEach = 28

func name(twin bool, i int, ns string) string {
	if twin {
		return fmt.Sprintf("%s-twin-%d", ns, i)
	}
	return fmt.Sprintf("%s-work-%d", ns, i)
}

// oneOf returns a random argument.
func oneOf[T any](v *results, of ...T) T { return of[v.IntN(len(of))] }

// grant gives the account random rights. The right to read Pods shows when they are in force.
func (v *results) grant() {
	v.Helper()
	for _, k := range resultKinds {
		rule := rbacv1.PolicyRule{APIGroups: []string{k.group}, Resources: []string{k.resource}, Verbs: orphaned}
		switch v.IntN(8) {
		case 0:
			continue
		case 1:
			rule.Verbs = nil
			for _, verb := range orphaned {
				if v.IntN(3) > 0 {
					rule.Verbs = append(rule.Verbs, verb)
				}
			}
		case 2:
			for i := range manifestsEach {
				if v.IntN(2) == 0 {
					rule.ResourceNames = append(rule.ResourceNames, name(false, i, v.ns), name(true, i, v.ns))
				}
			}
		}
		if v.IntN(6) == 0 {
			rule.Verbs = append(slices.Clone(rule.Verbs), oneOf(v, "escalate", "bind"))
		}
		if len(rule.Verbs) > 0 {
			v.rules = append(v.rules, rule)
		}
	}
	v.rules = append(v.rules, coreRule([]string{"get"}, "pods"))
	grantEverywhere(v.T, v.ns, v.rules...)
	harness.Eventually(v.T, func(ctx context.Context) error {
		if ok, err := v.may(ctx, "get", schema.GroupResource{Resource: "pods"}, "x"); !ok || err != nil {
			return fmt.Errorf("the rights do not count yet: %w", err)
		}
		return nil
	})
}

func (v *results) user() string { return "system:serviceaccount:" + v.ns + ":" + executorName }

func (v *results) may(ctx context.Context, verb string, gr schema.GroupResource, name string) (bool, error) {
	r, err := shared.API[cluster].Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: v.user(), Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + v.ns, "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: gr.Group, Resource: gr.Resource, Namespace: v.ns, Name: name},
	}}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return r.Status.Allowed, nil
}

// content returns random content for an object of a kind. If bare is true, it has no rules and no subjects.
func (v *results) content(kind string, bare bool) map[string]any {
	c := map[string]any{}
	rule := func(resource, verb string) any {
		return map[string]any{"apiGroups": []any{""}, "resources": []any{resource}, "verbs": []any{verb}}
	}
	switch kind {
	case "ConfigMap":
		c["data"] = map[string]any{"k": oneOf(v, "1", "2")}
	case "Secret":
		c["stringData"] = map[string]any{"k": oneOf(v, "1", "2")}
	case "Role", "ClusterRole":
		if !bare {
			c["rules"] = oneOf(v, []any{rule("pods", "get")}, []any{rule("pods", "get"), rule("nodes", "delete")}, []any{rule("nodes", "delete")})
		}
	default:
		c["roleRef"] = map[string]any{"apiGroup": rbacv1.GroupName, "kind": "ClusterRole", "name": v.ns + oneOf(v, "-weak", "-strong")}
		if !bare {
			c["subjects"] = []any{map[string]any{"kind": "ServiceAccount", "namespace": v.ns, "name": oneOf(v, "first", "other")}}
		}
	}
	return c
}

func playResults(t *testing.T, seed uint64, seen map[string]int) {
	ns := shared.NamespaceOn(t, cluster)
	v := &results{T: t, Rand: rand.New(rand.NewPCG(seed, seed)), ns: ns}
	clusterRole(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: ns + "-weak"}, Rules: []rbacv1.PolicyRule{coreRule([]string{"get"}, "pods")}})
	clusterRole(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: ns + "-strong"}, Rules: []rbacv1.PolicyRule{coreRule([]string{"delete"}, "nodes")}})
	admin, err := shared.Clusters[cluster].RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	objects := kubeOf(t, admin)
	as := rest.CopyConfig(admin)
	as.Impersonate = rest.ImpersonationConfig{UserName: v.user()}
	account := twins{kubeOf(t, as), objects}

	w := in(ns, harness.NewWork(t, cluster, ns))
	w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
	specs := map[bool]*workv1.ManifestWorkSpec{false: &w.Spec, true: {DeleteOption: w.Spec.DeleteOption}}
	for i := range manifestsEach {
		k := resultKinds[v.IntN(len(resultKinds))]
		strategy := oneOf(v, resultStrategies...)
		live, want := v.content(k.kind, v.IntN(4) == 0), v.content(k.kind, v.IntN(3) == 0)
		there, labelled := v.IntN(3) > 0, v.IntN(2) == 0
		if v.IntN(3) == 0 {
			want = v.bareOf(k.kind, live)
		}
		for _, twin := range []bool{false, true} {
			id := workv1.ResourceIdentifier{Group: k.group, Resource: k.resource, Name: name(twin, i, ns)}
			o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": k.apiVersion, "kind": k.kind}}
			o.SetName(id.Name)
			if k.namespaced {
				id.Namespace = ns
				o.SetNamespace(ns)
			}
			gvr := schema.FromAPIVersionAndKind(k.apiVersion, k.kind).GroupVersion().WithResource(k.resource)
			if there {
				made := o.DeepCopy()
				maps.Copy(made.Object, live)
				v.make(admin, gvr, made)
			}
			maps.Copy(o.Object, want)
			if labelled {
				o.SetLabels(map[string]string{"labelled": "yes"})
			}
			raw, err := json.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			spec := specs[twin]
			spec.Workload.Manifests = append(spec.Workload.Manifests, workv1.Manifest{RawExtension: runtime.RawExtension{Raw: raw}})
			spec.ManifestConfigs = append(spec.ManifestConfigs, workv1.ManifestConfigOption{ResourceIdentifier: id, UpdateStrategy: &strategy})
		}
	}
	v.grant()
	w = shared.Create(t, w)
	mine, theirs := apply.Load(t.Context(), objects, w.Spec), apply.Load(t.Context(), objects, *specs[true])
	applier := apply.Applier{Objects: account, Wait: func(context.Context, time.Duration) error { return errors.New("no second time") }}
	expected := make([]string, len(theirs))
	for i, m := range theirs {
		expected[i] = v.expect(applier, m)
		seen[expected[i]]++
	}
	harness.Eventually(t, func(ctx context.Context) error {
		got, err := shared.Get(ctx, w.Namespace, w.Name)
		if err == nil && len(got.Status.ResourceStatus.Manifests) != len(mine) {
			err = errors.New("the work was not applied yet")
		}
		if err != nil {
			return err
		}
		for i, m := range got.Status.ResourceStatus.Manifests {
			c := meta.FindStatusCondition(m.Conditions, workv1.ManifestApplied)
			if c == nil {
				return fmt.Errorf("manifest %d has no condition", i)
			}
			if output := resultOf(*c); output != expected[i] {
				return fmt.Errorf("seed %d: manifest %d, %s by %s with the rights %v, is %s (%s), the kube-apiserver answers %s", seed, i,
					w.Spec.Workload.Manifests[i].Raw, w.Spec.ManifestConfigs[i].UpdateStrategy.Type, v.rules, output, c.Message, expected[i])
			}
		}
		return nil
	})
	for i := range mine {
		a, b := v.read(objects, mine[i].Ref), v.read(objects, theirs[i].Ref)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("seed %d: manifest %d, %s: the work left %v, the account %v", seed, i, w.Spec.Workload.Manifests[i].Raw, a, b)
		}
	}
}

// bareOf returns a manifest without rules and subjects. The roleRef of a binding is required.
func (v *results) bareOf(kind string, live map[string]any) map[string]any {
	c := v.content(kind, true)
	if ref, has := live["roleRef"]; has {
		c["roleRef"] = ref
	}
	return c
}

// expect returns the server's answer when an account writes the object itself. The account has all rights that
// an executor needs.
func (v *results) expect(a apply.Applier, m apply.Manifest) string {
	v.Helper()
	for _, verb := range orphaned {
		name := m.Ref.Name
		if verb == "create" && m.Config.Strategy.Type != workv1.UpdateStrategyTypeServerSideApply {
			name = ""
		}
		if ok, err := v.may(v.Context(), verb, m.Ref.GroupResource(), name); err != nil {
			v.Fatal(err)
		} else if !ok {
			return "denied"
		}
	}
	res := a.Apply(v.Context(), a.Plan(v.Context(), m, apply.Owner{}, apply.KnownState{}), apply.Owner{})
	switch {
	case res.Err == nil:
		return "applied"
	case apierrors.IsForbidden(res.Err):
		return "escalation"
	}
	return "failed"
}

func resultOf(c metav1.Condition) string {
	switch {
	case c.Status == metav1.ConditionTrue:
		return "applied"
	case strings.Contains(c.Message, "error: permission escalation"):
		return "escalation"
	case strings.Contains(c.Message, "not allowed to apply the resource"):
		return "denied"
	}
	return "failed"
}

// read returns an object without metadata, except its labels.
func (v *results) read(objects agentcluster.Objects, ref agentcluster.Ref) map[string]any {
	v.Helper()
	o, err := objects.Get(v.Context(), ref)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		v.Fatal(err)
	}
	c := maps.Clone(o.Object)
	c["metadata"] = o.GetLabels()
	return c
}

func kubeOf(t *testing.T, c *rest.Config) *agentcluster.Kube {
	t.Helper()
	k, err := agentcluster.NewKube(agentcluster.KubeConfig{REST: c, QPS: 500, Burst: 500})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// twins writes as the account and reads as the administrator, because the agent reads with its own rights.
type twins struct {
	agentcluster.Objects
	reads agentcluster.Objects
}

// Get implements agentcluster.Objects.
func (o twins) Get(ctx context.Context, ref agentcluster.Ref) (*unstructured.Unstructured, error) {
	return o.reads.Get(ctx, ref)
}

// make creates an object as the administrator, until the test ends.
func (v *results) make(admin *rest.Config, gvr schema.GroupVersionResource, o *unstructured.Unstructured) {
	v.Helper()
	api, err := dynamic.NewForConfig(admin)
	if err != nil {
		v.Fatal(err)
	}
	if _, err := api.Resource(gvr).Namespace(o.GetNamespace()).Create(v.Context(), o, metav1.CreateOptions{FieldManager: "administrator"}); err != nil {
		v.Fatal(err)
	}
}
