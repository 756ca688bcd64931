package admission

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
)

const configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`

// rules returns the default rules of a hub.
func rules() Rules { return Rules{ManifestLimit: manifestwork.MaxManifestsSize} }

func workOf(manifests ...string) *workv1.ManifestWork {
	w := &workv1.ManifestWork{ObjectMeta: metav1.ObjectMeta{Namespace: "cluster1", Name: "w", UID: "u", Generation: 1}}
	for _, m := range manifests {
		w.Spec.Workload.Manifests = append(w.Spec.Workload.Manifests, workv1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(m)}})
	}
	return w
}

func with(w *workv1.ManifestWork, change func(*workv1.ManifestWork)) *workv1.ManifestWork {
	c := w.DeepCopy()
	change(c)
	return c
}

func executedBy(namespace, name string) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) {
		w.Spec.Executor = &workv1.ManifestWorkExecutor{Subject: workv1.ManifestWorkExecutorSubject{
			Type: workv1.ExecutorSubjectTypeServiceAccount, ServiceAccount: &workv1.ManifestWorkSubjectServiceAccount{Namespace: namespace, Name: name},
		}}
	}
}

func withTTL(seconds int64) func(*workv1.ManifestWork) {
	return func(w *workv1.ManifestWork) {
		w.Spec.DeleteOption = &workv1.DeleteOption{TTLSecondsAfterFinished: &seconds}
	}
}

// request returns the request of a kube-apiserver about a work; old is nil for a new one.
func request(tb testing.TB, work, old *workv1.ManifestWork) *admissionv1.AdmissionRequest {
	tb.Helper()
	req := &admissionv1.AdmissionRequest{
		UID: "1", Operation: admissionv1.Create, Namespace: work.Namespace, Name: work.Name,
		Resource: metav1.GroupVersionResource{Group: workv1.GroupName, Version: "v1", Resource: Resource},
		UserInfo: authenticationv1.UserInfo{Username: "jane"},
		Object:   runtime.RawExtension{Raw: marshal(tb, work)},
	}
	if old != nil {
		req.Operation, req.OldObject.Raw = admissionv1.Update, marshal(tb, old)
	}
	return req
}

func marshal(tb testing.TB, v any) []byte {
	tb.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// sized returns a ConfigMap of exactly size bytes.
func sized(t *testing.T, name string, size int) string {
	t.Helper()
	frame := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"},"data":{"a":"%s"}}`
	m := fmt.Sprintf(frame, name, strings.Repeat("x", size-len(fmt.Sprintf(frame, name, ""))))
	if len(m) != size {
		t.Fatalf("a manifest of %d bytes, want %d", len(m), size)
	}
	return m
}

func TestRules_RefuseAsOpenClusterManagementDoes(t *testing.T) {
	secret := strings.Replace(configMap, "ConfigMap", "Secret", 1)
	for name, tc := range map[string]struct {
		manifests []string
		limit     int
		want      string
	}{
		"a good one":                        {manifests: []string{configMap, secret}},
		"no manifests":                      {want: "manifests should not be empty"},
		"too large":                         {manifests: []string{sized(t, "a", 100), sized(t, "b", 200)}, limit: 304, want: "the size of manifests is 305 bytes which exceeds the 304 limit"},
		"as large as may be":                {manifests: []string{sized(t, "a", 100), sized(t, "b", 200)}, limit: 305},
		"too large for the default":         {manifests: []string{sized(t, "a", 500*1024-3)}, want: "the size of manifests is 512001 bytes which exceeds the 512000 limit; manifest 0, \"ConfigMap\" \"a\", alone is too large: divide its data among several objects, or let a Job in the work fetch and apply it, see docs/manifestwork.md#an-object-above-the-limit"},
		"as large as the default allows":    {manifests: []string{sized(t, "a", 500*1024-4)}},
		"not an object":                     {manifests: []string{configMap, `{"metadata":{"name":"a"}}`}, want: `Object 'Kind' is missing in '{"metadata":{"name":"a"}}'`},
		"no name":                           {manifests: []string{configMap, `{"apiVersion":"v1","kind":"Secret","metadata":{"namespace":"default"}}`}, want: "name must be set in manifest"},
		"generateName":                      {manifests: []string{`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","generateName":"b"}}`}, want: "generateName must not be set in manifest"},
		"generateName alone":                {manifests: []string{`{"apiVersion":"v1","kind":"Secret","metadata":{"generateName":"b"}}`}, want: "name must be set in manifest"},
		"twice the same":                    {manifests: []string{configMap, secret, configMap}, want: "duplicate manifest for resource default/a with resource type v1.ConfigMap"},
		"twice the same, of a group":        {manifests: slicesOf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"}}`, 2), want: "duplicate manifest for resource /web with resource type apps/v1.Deployment"},
		"size before form":                  {manifests: []string{`{"a":"` + strings.Repeat("x", 100) + `"}`}, limit: 50, want: "the size of manifests is 110 bytes which exceeds the 50 limit; manifest 0, \"\" \"\", alone is too large: remove the parts that it does not need, or let a Job in the work fetch and apply it, see docs/manifestwork.md#an-object-above-the-limit"},
		"form of all before duplicates":     {manifests: []string{configMap, configMap, `{"apiVersion":"v1","kind":"Secret","metadata":{}}`}, want: "name must be set in manifest"},
		"same name in another namespace":    {manifests: []string{configMap, strings.Replace(configMap, "default", "other", 1)}},
		"same object in another API verson": {manifests: []string{configMap, strings.Replace(configMap, "v1", "v2", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			r := rules()
			if tc.limit != 0 {
				r.ManifestLimit = tc.limit
			}
			work := workOf(tc.manifests...)
			if got := r.Check(request(t, work, nil)); got.Problem != tc.want || got.Executor != nil {
				t.Errorf("created: %+v, want %q", got, tc.want)
			}
			if got := r.Check(request(t, work, workOf(secret))); got.Problem != tc.want || got.Executor != nil {
				t.Errorf("updated: %+v, want %q", got, tc.want)
			}
		})
	}
}

func slicesOf(manifest string, n int) []string {
	return strings.Split(strings.Repeat(manifest+"\n", n)[:n*(len(manifest)+1)-1], "\n")
}

// A work that breaks a later rule still loses its finalizer and gets labels; only changed manifests have to
// follow the rule.
func TestRules_LeaveUnchangedManifestsAlone(t *testing.T) {
	for name, old := range map[string]*workv1.ManifestWork{
		"empty": workOf(), "twice the same": workOf(configMap, configMap), "no name": workOf(`{"kind":"Secret"}`),
	} {
		changed := with(old, func(w *workv1.ManifestWork) {
			w.Finalizers, w.Labels = nil, map[string]string{"a": "b"}
			w.Spec.DeleteOption = &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
		})
		if got := rules().Check(request(t, changed, old)); got.Problem != "" {
			t.Errorf("%s: %s", name, got.Problem)
		}
		changed.Spec.Workload.Manifests = append(changed.Spec.Workload.Manifests, workOf(configMap, configMap).Spec.Workload.Manifests...)
		if got := rules().Check(request(t, changed, old)); got.Problem == "" {
			t.Errorf("%s: changed for the worse and admitted", name)
		}
	}
}

func TestRules_AdmitUnrelatedObjects(t *testing.T) {
	empty := workOf()
	for name, change := range map[string]func(*admissionv1.AdmissionRequest){
		"deletion": func(r *admissionv1.AdmissionRequest) {
			r.Operation, r.OldObject, r.Object = admissionv1.Delete, r.Object, runtime.RawExtension{}
		},
		"status":  func(r *admissionv1.AdmissionRequest) { r.SubResource, r.Operation = "status", admissionv1.Update },
		"connect": func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Connect },
	} {
		req := request(t, empty, nil)
		change(req)
		if got := rules().Check(req); !cmp.Equal(got, Answer{}) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestRules_ReportUncheckableRules(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*admissionv1.AdmissionRequest)
		want   string
	}{
		"another resource": {func(r *admissionv1.AdmissionRequest) { r.Resource.Resource = "placements" }, "the request is about placements.work.open-cluster-management.io"},
		"no object":        {func(r *admissionv1.AdmissionRequest) { r.Object.Raw = nil }, "the ManifestWork cannot be read"},
		"another type":     {func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`{"spec":[]}`) }, "the ManifestWork cannot be read"},
		"no old object":    {func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }, "as it was before cannot be read"},
	} {
		req := request(t, workOf(configMap), nil)
		tc.change(req)
		if got := rules().Check(req); !strings.Contains(got.Problem, tc.want) {
			t.Errorf("%s: %q, want %q", name, got.Problem, tc.want)
		}
	}
}

func TestRules_CheckExecuteAs(t *testing.T) {
	simple := workOf(configMap)
	app, db := with(simple, executedBy("apps", "deployer")), with(simple, executedBy("db", "admin"))
	const appName, dbName, agentName = "system:serviceaccount:apps:deployer", "system:serviceaccount:db:admin", "system:serviceaccount::klusterlet-work-sa"
	for name, tc := range map[string]struct {
		work, old *workv1.ManifestWork
		nilToo    bool
		want      string // the name in the question, "" for no question
	}{
		"created without":                   {work: simple},
		"created without, which is checked": {work: simple, nilToo: true, want: agentName},
		"created with":                      {work: app, want: appName},
		"updated, executor as it was":       {work: with(app, withTTL(1)), old: app, nilToo: true},
		"updated without, as it was":        {work: with(simple, withTTL(1)), old: simple, nilToo: true},
		"another executor":                  {work: db, old: app, want: dbName},
		"an executor is added":              {work: app, old: simple, want: appName},
		"the executor is removed":           {work: simple, old: app},
		"removed, which is checked":         {work: simple, old: app, nilToo: true, want: agentName},
	} {
		t.Run(name, func(t *testing.T) {
			r := rules()
			r.CheckNilExecutor = tc.nilToo
			got := r.Check(request(t, tc.work, tc.old))
			requested := ""
			if got.Executor != nil {
				requested = got.Executor.Review().Spec.ResourceAttributes.Name
			}
			if got.Problem != "" || requested != tc.want {
				t.Errorf("problem %q, reviewed %q, want %q", got.Problem, requested, tc.want)
			}
		})
	}
	if got := rules().Check(request(t, with(simple, func(w *workv1.ManifestWork) { w.Spec.Executor = &workv1.ManifestWorkExecutor{} }), nil)); got.Problem != "executor service account can not be nil" {
		t.Errorf("an executor without a subject: %+v", got)
	}
}

func TestExecutor_IsReviewedInFull(t *testing.T) {
	req := request(t, with(workOf(configMap), executedBy("apps", "deployer")), nil)
	req.UserInfo = authenticationv1.UserInfo{
		Username: "jane", UID: "7", Groups: []string{"devs", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"scopes": {"a", "b"}},
	}
	e := rules().Check(req).Executor
	want := authorizationv1.SubjectAccessReviewSpec{
		User: "jane", UID: "7", Groups: []string{"devs", "system:authenticated"},
		Extra: map[string]authorizationv1.ExtraValue{"scopes": {"a", "b"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "execute-as", Group: "work.open-cluster-management.io", Resource: "manifestworks", Namespace: "cluster1",
			Name: "system:serviceaccount:apps:deployer",
		},
	}
	if diff := cmp.Diff(want, e.Review().Spec); diff != "" {
		t.Errorf("the question (-want +got):\n%s", diff)
	}
	if got, want := e.Denial(), "user jane cannot manipulate the Manifestwork with executor apps/deployer in namespace cluster1"; got != want {
		t.Errorf("the denial is %q, want %q", got, want)
	}
}

// Everything that Open Cluster Management admits is admitted here too. If no cluster can do what is intended,
// the user gets a warning.
func TestRules_WarnOfUndeliverableWorks(t *testing.T) {
	object := func(apiVersion, namespace, name string) string {
		return fmt.Sprintf(`{"apiVersion":%q,"kind":"Deployment","metadata":{"name":%q,"namespace":%q}}`, apiVersion, name, namespace)
	}
	web := object("apps/v1", "default", "web")
	for name, tc := range map[string]struct {
		manifests []string
		want      []string
	}{
		"nothing":         {[]string{web, object("other/v1", "default", "web"), object("apps/v1", "", "web"), object("apps/v1", "default", "db")}, nil},
		"in two versions": {[]string{web, configMap, object("apps/v1beta1", "default", "web")}, []string{"manifests 0 and 2 are one object in two API versions: each overwrites the other one"}},
		"in many":         {versions(20), warningsOf(8)},
	} {
		got := rules().Check(request(t, workOf(tc.manifests...), nil))
		if diff := cmp.Diff(tc.want, got.Warnings); diff != "" || got.Problem != "" {
			t.Errorf("%s: problem %q, warnings (-want +got):\n%s", name, got.Problem, diff)
		}
	}
}

func versions(n int) (manifests []string) {
	for i := range n {
		manifests = append(manifests, fmt.Sprintf(`{"apiVersion":"v%d","kind":"Secret","metadata":{"name":"a"}}`, i))
	}
	return manifests
}

func warningsOf(n int) (reported []string) {
	for i := range n {
		reported = append(reported, fmt.Sprintf("manifests 0 and %d are one object in two API versions: each overwrites the other one", i+1))
	}
	return reported
}

func TestRules_WarnOfIgnoredTimeToLive(t *testing.T) {
	simple := workOf(configMap)
	for name, tc := range map[string]struct {
		work, old *workv1.ManifestWork
		on, warns bool
	}{
		"created with":         {work: with(simple, withTTL(5)), warns: true},
		"created with 0":       {work: with(simple, withTTL(0)), warns: true},
		"created without":      {work: simple},
		"gate on":              {work: with(simple, withTTL(5)), on: true},
		"updated, as it was":   {work: with(simple, withTTL(5)), old: with(simple, withTTL(5))},
		"updated to another":   {work: with(simple, withTTL(5)), old: with(simple, withTTL(6)), warns: true},
		"no time to live left": {work: simple, old: with(simple, withTTL(6))},
	} {
		r := rules()
		r.CleansUp = tc.on
		got := r.Check(request(t, tc.work, tc.old))
		if warned := len(got.Warnings) == 1 && strings.Contains(got.Warnings[0], "CleanUpCompletedManifestWork"); warned != tc.warns || got.Problem != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestValidateLimit(t *testing.T) {
	for limit, ok := range map[int]bool{-1: false, 0: false, 1: true, 512000: true, 512001: false} {
		if err := ValidateLimit(limit); (err == nil) != ok {
			t.Errorf("%d: %v", limit, err)
		}
	}
}
