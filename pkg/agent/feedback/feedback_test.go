package feedback_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/feedback"
)

// object parses a manifest like the agent does.
func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return o
}

func wellKnown() workv1.FeedbackRule {
	return workv1.FeedbackRule{Type: workv1.WellKnownStatusType}
}

func paths(p ...workv1.JsonPath) workv1.FeedbackRule {
	return workv1.FeedbackRule{Type: workv1.JSONPathsType, JsonPaths: p}
}

// show formats values as "name Type=value".
func show(values []workv1.FeedbackValue) []string {
	var list []string
	for _, v := range values {
		s := fmt.Sprintf("%s %s=", v.Name, v.Value.Type)
		switch f := v.Value; {
		case f.Integer != nil:
			s += fmt.Sprint(*f.Integer)
		case f.String != nil:
			s += *f.String
		case f.Boolean != nil:
			s += fmt.Sprint(*f.Boolean)
		case f.JsonRaw != nil:
			s += *f.JsonRaw
		}
		list = append(list, s)
	}
	return list
}

func texts(errs []error) []string {
	var list []string
	for _, err := range errs {
		list = append(list, err.Error())
	}
	return list
}

func check(t *testing.T, r feedback.Reader, obj *unstructured.Unstructured, rules []workv1.FeedbackRule, want, wantErrs []string) {
	t.Helper()
	values, errs := r.Read(obj, rules)
	if d := cmp.Diff(want, show(values)); d != "" {
		t.Errorf("values (-want +got)\n%s", d)
	}
	if d := cmp.Diff(wantErrs, texts(errs)); d != "" {
		t.Errorf("errors (-want +got)\n%s", d)
	}
}

func TestReader_WellKnownStatus(t *testing.T) {
	for name, c := range map[string]struct {
		object     string
		want, errs []string
	}{
		"Deployment": {
			object: `{"apiVersion":"apps/v1","kind":"Deployment","status":{"availableReplicas":1,"readyReplicas":2,"replicas":3}}`,
			want:   []string{"ReadyReplicas Integer=2", "Replicas Integer=3", "AvailableReplicas Integer=1"},
		},
		"Deployment, of which nothing is ready": {
			object: `{"apiVersion":"apps/v1","kind":"Deployment","status":{"replicas":3}}`,
			want:   []string{"Replicas Integer=3"},
		},
		"Deployment without a status": {object: `{"apiVersion":"apps/v1","kind":"Deployment"}`},
		"DaemonSet": {
			object: `{"apiVersion":"apps/v1","kind":"DaemonSet","status":{"numberReady":1,"desiredNumberScheduled":2,"numberAvailable":0}}`,
			want:   []string{"NumberReady Integer=1", "DesiredNumberScheduled Integer=2", "NumberAvailable Integer=0"},
		},
		"Job": {
			object: `{"apiVersion":"batch/v1","kind":"Job","status":{"succeeded":4,"conditions":[{"type":"Suspended","status":"False"},{"type":"Complete","status":"True"}]}}`,
			want:   []string{"JobComplete String=True", "JobSucceeded Integer=4"},
		},
		"Pod": {
			object: `{"apiVersion":"v1","kind":"Pod","status":{"phase":"Running","conditions":[{"type":"Ready","status":"False"}]}}`,
			want:   []string{"PodReady String=False", "PodPhase String=Running"},
		},
		"another version": {
			object: `{"apiVersion":"apps/v1beta1","kind":"Deployment"}`,
			errs:   []string{"cannot find the wellknown statuses for resource with gvk apps/v1beta1, Kind=Deployment"},
		},
		"core kind": {
			object: `{"apiVersion":"v1","kind":"ConfigMap"}`,
			errs:   []string{"cannot find the wellknown statuses for resource with gvk /v1, Kind=ConfigMap"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, feedback.Reader{}, object(t, c.object), []workv1.FeedbackRule{wellKnown()}, c.want, c.errs)
		})
	}
}

const rope = `{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"r"},"status":{
	"i":3,"f":1.5,"s":"text","empty":"","b":true,"null":null,"l":[1,2,3],"m":{"k":"v"},
	"t":[{"t":"A","v":1},{"t":"B","v":2},{"t":"B","v":3}],"nothing":[]}}`

func TestReader_Paths(t *testing.T) {
	for _, c := range []struct {
		path, version string
		off, on       string // the value without and with the feature gate; "" for none
		errOff, errOn string
		errBoth       string
	}{
		{path: ".status.i", off: "Integer=3", on: "Integer=3"},
		{path: "$.status.i", off: "Integer=3", on: "Integer=3"},
		{path: ".status.s", off: "String=text", on: "String=text"},
		{path: ".status.empty", off: "String=", on: "String="},
		{path: ".status.b", off: "Boolean=true", on: "Boolean=true"},
		{path: "..name", off: "String=r", on: "String=r"},
		{path: ".kind", off: "String=Rope", on: "String=Rope"}, // paths outside of the status are allowed
		{path: ".status.l[0]", off: "Integer=1", on: "Integer=1"},
		{path: ".status.l[-1]", off: "Integer=3", on: "Integer=3"},
		{path: `.status.t[?(@.t=="A")].v`, off: "Integer=1", on: "Integer=1"},
		{path: `.status.t[?(@.t=="B")].v`, off: "Integer=2", on: "JsonRaw=[2,3]"},
		{path: ".status.l[*]", off: "Integer=1", on: "JsonRaw=[1,2,3]"},
		{path: ".status.missing"},
		{path: ".status.missing.deeper"},
		{path: ".status.null"},
		{path: ".status.nothing[*]"},
		{path: `.status.t[?(@.t=="C")].v`},
		{path: ".status.f", errOff: "the type float64 of the value for n is not found", on: "JsonRaw=1.5"},
		{path: ".status.m", errOff: "the type map[string]interface {} of the value for n is not found", on: `JsonRaw={"k":"v"}`},
		{path: ".status.l", errOff: "the type []interface {} of the value for n is not found", on: "JsonRaw=[1,2,3]"},
		{path: "", errOff: "the type map[string]interface {} of the value for n is not found", errOn: "the length of returned json raw string for name n is larger than the maximum length 100"},
		{path: ".status.i}{.status.s", off: "Integer=3", on: "JsonRaw=[3]"},
		{path: ".status.l[9]", errBoth: "failed to find value for n with error: array index out of bounds: index 9, length 3"},
		{path: "status.i", errBoth: "failed to find value for n with error: unrecognized identifier status"},
		{path: "{.status.i}", errBoth: "failed to parse json path {.status.i} of n with error: unrecognized character in action: U+007B '{'"},
		{path: ".status.i", version: "v1", off: "Integer=3", on: "Integer=3"},
		{path: ".status.i", version: "v2", errBoth: "version set in the path n is not matched for the related resource"},
		{path: ".x" + strings.Repeat("[0,0]", 40), errBoth: "failed to find value for n with error: the path would visit too many values of the object, more than 5000000: use fewer of '..' and of lists in brackets"},
		{path: strings.Repeat(".x", 3000), errBoth: "failed to parse json path " + strings.Repeat(".x", 3000) + " of n with error: it has 6000 bytes, use at most 4096"},
	} {
		t.Run(fmt.Sprintf("%.40s", c.path), func(t *testing.T) {
			rules := []workv1.FeedbackRule{paths(workv1.JsonPath{Name: "n", Path: c.path, Version: c.version})}
			one := func(prefix, s string) []string {
				if s == "" {
					return nil
				}
				return []string{prefix + s}
			}
			check(t, feedback.Reader{RawLength: 100}, object(t, rope), rules, one("n ", c.off), one("", c.errOff+c.errBoth))
			check(t, feedback.Reader{Raw: true, RawLength: 100}, object(t, rope), rules, one("n ", c.on), one("", c.errOn+c.errBoth))
		})
	}
}

func TestReader_LongTexts(t *testing.T) {
	long := func(n int) *unstructured.Unstructured {
		return object(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"X","s":%q,"m":{"k":%q}}`, strings.Repeat("é", n/2), strings.Repeat("x", n)))
	}
	s, m := paths(workv1.JsonPath{Name: "s", Path: ".s"}), paths(workv1.JsonPath{Name: "m", Path: ".m"})
	overhead := len(`{"k":""}`)
	check(t, feedback.Reader{Raw: true}, long(1024-overhead), []workv1.FeedbackRule{m}, []string{`m JsonRaw={"k":"` + strings.Repeat("x", 1024-overhead) + `"}`}, nil)
	// A value that the hub would reject is not sent, with any limit.
	check(t, feedback.Reader{Raw: true, RawLength: 1 << 20}, long(1025-overhead), []workv1.FeedbackRule{m}, nil,
		[]string{"the length of returned json raw string for name m is larger than the maximum length 1024"})
	check(t, feedback.Reader{}, long(2000), []workv1.FeedbackRule{s}, []string{"s String=" + strings.Repeat("é", 1000)}, nil)
	check(t, feedback.Reader{}, long(1<<17), []workv1.FeedbackRule{s}, nil, []string{"the length of the string for name s is larger than the maximum length 65536"})
}

func TestReader_RulesAreCombinedInOrder(t *testing.T) {
	o := object(t, `{"apiVersion":"apps/v1","kind":"Deployment","status":{"readyReplicas":2,"replicas":3,"f":1.5}}`)
	check(t, feedback.Reader{}, o, []workv1.FeedbackRule{
		paths(workv1.JsonPath{Name: "Replicas", Path: ".status.readyReplicas"}, workv1.JsonPath{Name: "bad", Path: ".status.f"}, workv1.JsonPath{Name: "absent", Path: ".status.x"}),
		wellKnown(),
		{Type: "Guess"},
		paths(workv1.JsonPath{Name: "absent", Path: ".status.replicas"}),
	}, []string{"Replicas Integer=2", "ReadyReplicas Integer=2", "absent Integer=3"}, []string{
		"the type float64 of the value for bad is not found",
		"the name Replicas is given to more than one value: only the first is reported, use another name for .status.replicas",
		`feedback rule type "Guess" is not known: use WellKnownStatus or JSONPaths`,
	})
	check(t, feedback.Reader{}, o, nil, nil, nil)
}

// A path costs at most a fixed number of visits, however deep the object is.
func TestReader_HostilePathsAreRefused(t *testing.T) {
	deep := object(t, `{"apiVersion":"v1","kind":"X","x":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`)
	usual := object(t, rope)
	for path, on := range map[string]*unstructured.Unstructured{
		"..x": deep, "................x": usual, `..[?(@..x==1)]..[?(@..y==2)]..z..z`: usual, "..[*]..[*]..[*]..[*]..[*]..[*]": usual,
	} {
		_, errs := feedback.Reader{}.Read(on, []workv1.FeedbackRule{paths(workv1.JsonPath{Name: "n", Path: path})})
		if len(errs) != 1 {
			t.Errorf("%s is evaluated", path)
		}
	}
	_, errs := feedback.Reader{}.Read(usual, []workv1.FeedbackRule{paths(workv1.JsonPath{Name: "n", Path: "..t..v"})})
	if len(errs) != 0 {
		t.Errorf("an ordinary path is refused: %v", errs)
	}
}

// Each open-ended range doubles the cost of the following steps. A text has as many values as bytes, and an
// error may contain the whole object.
func TestReader_HostilePathsAreBounded(t *testing.T) {
	o := object(t, rope)
	o.Object["text"] = strings.Repeat("x", 300_000)
	for _, path := range []string{
		".x}" + strings.Repeat("{range .x}", 40) + "{.y", ".x}" + strings.Repeat("{range .status.l[*]}", 40) + "{.y",
		"[" + strings.TrimSuffix(strings.Repeat("'text',", 40), ",") + "].*",
	} {
		_, errs := feedback.Reader{}.Read(o, []workv1.FeedbackRule{paths(workv1.JsonPath{Name: "n", Path: path})})
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), "would visit too many values of the object, more than 5000000: use fewer of '..' and of lists in brackets") {
			t.Errorf("%.60s: got %.300v", path, errs)
		}
	}
	_, errs := feedback.Reader{}.Read(o, []workv1.FeedbackRule{paths(workv1.JsonPath{Name: "n", Path: "[?(@.x==1)]"})})
	if len(errs) != 1 || len(errs[0].Error()) > 2_000 {
		t.Errorf("got %d errors, %.300v", len(errs), errs)
	}
}

// The visits of all paths of an object are bounded together, but direct paths cost almost nothing.
func TestReader_PathsAreBoundedTogether(t *testing.T) {
	o := object(t, rope)
	o.Object["text"] = strings.Repeat("x", 30_000)
	var wild, direct []workv1.JsonPath
	for i := range 30 {
		wild = append(wild, workv1.JsonPath{Name: fmt.Sprint("n", i), Path: "..i"})
	}
	for i := range 3_000 {
		direct = append(direct, workv1.JsonPath{Name: fmt.Sprint("d", i), Path: ".status.l[1]"})
	}
	values, errs := feedback.Reader{}.Read(o, []workv1.FeedbackRule{paths(direct...), paths(wild...)})
	if len(values) <= len(direct) || len(values) == len(direct)+len(wild) || len(errs) != len(direct)+len(wild)-len(values) {
		t.Fatalf("%d values, %d errors", len(values), len(errs))
	}
	for _, err := range errs {
		if !strings.Contains(err.Error(), "the paths for this object would visit too many of its values together, more than 10000000: use fewer paths, or name the fields more directly") {
			t.Errorf("got %v", err)
		}
	}
}
