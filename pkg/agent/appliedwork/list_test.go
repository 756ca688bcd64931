package appliedwork_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
	"github.com/hawser-io/hawser/pkg/agent/apply"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func entry(group, version, resource, namespace, name, uid string) appliedwork.Entry {
	return appliedwork.Entry{ResourceIdentifier: workv1.ResourceIdentifier{Group: group, Resource: resource, Namespace: namespace, Name: name}, Version: version, UID: uid}
}

func configMap(name, uid string) appliedwork.Entry {
	return entry("", "v1", "configmaps", "default", name, uid)
}

func manifests(t *testing.T, raw ...string) []apply.Manifest {
	t.Helper()
	var s workv1.ManifestWorkSpec
	for _, r := range raw {
		s.Workload.Manifests = append(s.Workload.Manifests, workv1.Manifest{RawExtension: runtime.RawExtension{Raw: []byte(r)}})
	}
	return apply.Load(t.Context(), clustertest.New(), s)
}

func manifestOf(t *testing.T, name string) apply.Manifest {
	return manifests(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`","namespace":"default"}}`)[0]
}

func check(t *testing.T, want, got []appliedwork.Entry) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
}

func TestSort_ByGroupVersionResourceNamespaceNameOnePerObject(t *testing.T) {
	check(t, []appliedwork.Entry{
		entry("", "v1", "configmaps", "a", "z", ""),
		entry("", "v1", "configmaps", "b", "a", ""),
		entry("", "v1", "secrets", "a", "a", ""),
		entry("apps", "v1", "deployments", "a", "a", "u2"),
		entry("apps", "v2", "daemonsets", "a", "a", ""),
	}, appliedwork.Sort([]appliedwork.Entry{
		entry("apps", "v1beta1", "deployments", "a", "a", "u1"),
		entry("apps", "v2", "daemonsets", "a", "a", ""),
		entry("", "v1", "secrets", "a", "a", ""),
		entry("", "v1", "configmaps", "b", "a", ""),
		entry("apps", "v1", "deployments", "a", "a", "u2"),
		entry("", "v1", "configmaps", "a", "z", ""),
	}))
}

func TestIntend(t *testing.T) {
	step := func(action apply.Action, uid string) []apply.Step {
		s := apply.Step{Manifest: manifestOf(t, "a"), Action: action}
		if uid != "" {
			s.Live = clustertest.Object("v1", "ConfigMap", "default", "a")
			s.Live.SetUID("u")
		}
		return []apply.Step{s}
	}
	for name, c := range map[string]struct {
		recorded []appliedwork.Entry
		steps    []apply.Step
		want     []appliedwork.Entry
	}{
		"a created object has no uid yet":               {nil, step(apply.Create, ""), []appliedwork.Entry{configMap("a", "")}},
		"an object that is created again loses its uid": {[]appliedwork.Entry{configMap("a", "old")}, step(apply.Create, ""), []appliedwork.Entry{configMap("a", "")}},
		"a replaced object loses its uid":               {[]appliedwork.Entry{configMap("a", "u")}, step(apply.Recreate, "u"), []appliedwork.Entry{configMap("a", "")}},
		"an adopted object is recorded":                 {nil, step(apply.Update, "u"), []appliedwork.Entry{configMap("a", "u")}},
		"created again by others, adopted":              {[]appliedwork.Entry{configMap("a", "old")}, step(apply.Update, "u"), []appliedwork.Entry{configMap("a", "u")}},
		"an updated object needs no other entry":        {[]appliedwork.Entry{configMap("a", "u")}, step(apply.Update, "u"), []appliedwork.Entry{configMap("a", "u")}},
		"an unchanged object needs no entry":            {nil, step(apply.Unchanged, "u"), nil},
		"a rejected object needs no entry":              {nil, step(apply.Reject, ""), nil},
		"an unwanted object stays for now":              {[]appliedwork.Entry{configMap("b", "u")}, step(apply.Create, ""), []appliedwork.Entry{configMap("a", ""), configMap("b", "u")}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.want, appliedwork.Intend(c.recorded, c.steps)) })
	}
}

func TestSettle(t *testing.T) {
	result := func(action apply.Action, p conditions.Presence, uid string) []apply.Result {
		r := apply.Result{Manifest: manifestOf(t, "a"), Action: action, Presence: p}
		if uid != "" {
			r.Live = clustertest.Object("v1", "ConfigMap", "default", "a")
			r.Live.SetUID("u")
		}
		return []apply.Result{r}
	}
	refused := result(apply.Create, conditions.Absent, "")
	refused[0].Err = errors.New("no such namespace")
	unmade := result(apply.Reject, conditions.Unreadable, "")
	unmade[0].Unmade = true
	unresolved := []apply.Result{{Manifest: apply.Manifest{}, Presence: conditions.Unidentified}}
	b := []appliedwork.Entry{configMap("b", "u")}
	for name, c := range map[string]struct {
		recorded         []appliedwork.Entry
		results          []apply.Result
		stale, remaining []appliedwork.Entry
		want             []appliedwork.Entry
	}{
		"made: now with its uid":          {recorded: []appliedwork.Entry{configMap("a", "")}, results: result(apply.Create, conditions.Present, "u"), want: []appliedwork.Entry{configMap("a", "u")}},
		"there, and was not recorded":     {results: result(apply.Unchanged, conditions.Present, "u"), want: []appliedwork.Entry{configMap("a", "u")}},
		"refused to be made, tried again": {recorded: []appliedwork.Entry{configMap("a", ""), configMap("b", "")}, results: refused, want: []appliedwork.Entry{configMap("a", ""), configMap("b", "")}},
		"unknown whether it was created":  {recorded: []appliedwork.Entry{configMap("a", "")}, results: result(apply.Create, conditions.Unreadable, ""), want: []appliedwork.Entry{configMap("a", "")}},
		"unknown: the recorded object":    {recorded: []appliedwork.Entry{configMap("a", "u")}, results: result(apply.Reject, conditions.Unreadable, ""), want: []appliedwork.Entry{configMap("a", "u")}},
		"unknown, nothing recorded":       {results: result(apply.Reject, conditions.Unreadable, "")},
		"not allowed to be made or read":  {recorded: []appliedwork.Entry{configMap("a", ""), configMap("b", "")}, results: unmade, want: []appliedwork.Entry{configMap("b", "")}},
		"not allowed, but made before":    {recorded: []appliedwork.Entry{configMap("a", "u")}, results: unmade, want: []appliedwork.Entry{configMap("a", "u")}},
		"refused and gone":                {recorded: []appliedwork.Entry{configMap("a", "u")}, results: result(apply.Reject, conditions.Absent, "")},
		"only read, and there":            {results: result(apply.Unchanged, conditions.Present, "u"), want: []appliedwork.Entry{configMap("a", "u")}},
		"only read, and gone":             {recorded: []appliedwork.Entry{configMap("a", "u")}, results: result(apply.Unchanged, conditions.Absent, "")},
		"only read, was about to be made": {recorded: []appliedwork.Entry{configMap("a", "")}, results: result(apply.Unchanged, conditions.Absent, ""), want: []appliedwork.Entry{configMap("a", "")}},
		"only read, but unreadable":       {recorded: []appliedwork.Entry{configMap("a", "u")}, results: result(apply.Unchanged, conditions.Unreadable, ""), want: []appliedwork.Entry{configMap("a", "u")}},
		"an unresolved manifest":          {recorded: b, results: unresolved, want: b},
		"removed":                         {recorded: b, results: result(apply.Unchanged, conditions.Present, "u"), stale: b, want: []appliedwork.Entry{configMap("a", "u")}},
		"still being removed":             {recorded: b, results: result(apply.Unchanged, conditions.Present, "u"), stale: b, remaining: b, want: []appliedwork.Entry{configMap("a", "u"), configMap("b", "u")}},
	} {
		t.Run(name, func(t *testing.T) { check(t, c.want, appliedwork.Merge(c.recorded, c.results, c.stale, c.remaining)) })
	}
}

func TestStaleEntries(t *testing.T) {
	rope := func(namespace string) appliedwork.Entry {
		return entry("example.com", "v1", "ropes", namespace, "a", "u")
	}
	const unknownKind = `{"apiVersion":"example.com/v2","kind":"Rope","metadata":{"name":"a","namespace":"default"}}`
	for name, c := range map[string]struct {
		recorded  []appliedwork.Entry
		manifests []string
		want      []appliedwork.Entry
	}{
		"no longer in the work": {
			recorded:  []appliedwork.Entry{configMap("a", "u"), configMap("b", "u")},
			manifests: []string{`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default"}}`},
			want:      []appliedwork.Entry{configMap("b", "u")},
		},
		"moved to another version": {
			recorded:  []appliedwork.Entry{entry("apps", "v1beta1", "deployments", "default", "a", "u")},
			manifests: []string{`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","namespace":"default"}}`},
		},
		"an unknown kind protects its possible objects only": {
			recorded:  []appliedwork.Entry{rope("default"), rope(""), rope("other"), configMap("a", "u"), entry("example.com", "v1", "ropes", "default", "b", "u")},
			manifests: []string{unknownKind},
			want:      []appliedwork.Entry{rope("other"), configMap("a", "u"), entry("example.com", "v1", "ropes", "default", "b", "u")},
		},
		"a manifest that lost its namespace protects the object it had": {
			recorded:  []appliedwork.Entry{configMap("a", "u"), configMap("b", "u"), entry("", "v1", "secrets", "default", "a", "u")},
			manifests: []string{`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`},
			want:      []appliedwork.Entry{configMap("b", "u"), entry("", "v1", "secrets", "default", "a", "u")},
		},
		"a manifest with an unreadable apiVersion protects everything": {
			recorded: []appliedwork.Entry{configMap("a", "u")}, manifests: []string{`{"apiVersion":"a/b/c","kind":"Rope","metadata":{"name":"b"}}`},
		},
		"a manifest that cannot be read at all protects everything": {
			recorded: []appliedwork.Entry{configMap("a", "u")}, manifests: []string{`{`},
		},
		"a manifest that is refused still stands for its object": {
			recorded:  []appliedwork.Entry{configMap("a", "u")},
			manifests: []string{`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"default","labels":{"x":1}}}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, c.want, appliedwork.StaleEntries(c.recorded, manifests(t, c.manifests...)))
		})
	}
}
