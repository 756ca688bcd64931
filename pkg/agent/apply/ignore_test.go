package apply

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/testkit/complexity"
	"github.com/hawser-io/hawser/pkg/agent/conditions"
)

const sampleObject = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","annotations":{"example.com/a":"1","b":"2"}},
	"spec":{"replicas":3,"paused":true,"ratio":0.5,"template":{"spec":{"containers":[
		{"name":"app","image":"i:1","env":[{"name":"MODE","value":"x"},{"name":"LEVEL","value":"1"}],"ports":[80,443,8080]},
		{"name":"side","image":"s:1"}]}}}}`

func parsed(t *testing.T, text string) map[string]any {
	t.Helper()
	return object(t, text).Object
}

// left evaluates one expression and returns the object without the ignored fields.
func left(t *testing.T, f workv1.IgnoreField, o map[string]any) (map[string]any, error) {
	t.Helper()
	before := runtime.DeepCopyJSON(o)
	i, err := ignoredIn(t.Context(), []workv1.IgnoreField{f}, o, false)
	if d := cmp.Diff(before, o); d != "" {
		t.Fatalf("the object was changed (-before +after)\n%s", d)
	}
	if err != nil {
		return nil, err
	}
	return i.present.without(o).(map[string]any), nil
}

// removed lists the leaves of a that b does not have, as "path=value".
func removed(a, b any) []string {
	var list []string
	var walk func(path string, v any, emit func(string))
	walk = func(path string, v any, emit func(string)) {
		switch v := v.(type) {
		case map[string]any:
			for name, e := range v {
				walk(path+"."+name, e, emit)
			}
		case []any:
			for _, e := range v {
				walk(path+"[]", e, emit)
			}
		default:
			text, _ := json.Marshal(v)
			emit(path + "=" + string(text))
		}
	}
	has := map[string]int{}
	walk("", b, func(s string) { has[s]++ })
	walk("", a, func(s string) {
		if has[s]--; has[s] < 0 {
			list = append(list, strings.TrimPrefix(s, "."))
		}
	})
	slices.Sort(list)
	return list
}

const containerPath = "spec.template.spec.containers[]"

func TestIgnoreFields_Select(t *testing.T) {
	for _, c := range []struct {
		notation, expression string
		want                 []string
	}{
		{"path", `.spec.replicas`, []string{"spec.replicas=3"}},
		{"path", `spec.replicas`, []string{"spec.replicas=3"}},
		{"path", `{.spec.replicas}`, []string{"spec.replicas=3"}},
		{"path", `$.spec.replicas`, []string{"spec.replicas=3"}},
		{"path", `.spec.none.deeper`, nil},
		{"path", `.spec.replicas.deeper`, nil},
		{"path", `.spec.template.spec.containers[*].image`, []string{containerPath + `.image="i:1"`, containerPath + `.image="s:1"`}},
		{"path", `.spec.template.spec.containers[0].image`, []string{containerPath + `.image="i:1"`}},
		{"path", `.spec.template.spec.containers[-1].image`, []string{containerPath + `.image="s:1"`}},
		{"path", `.spec.template.spec.containers[0:2:2].image`, []string{containerPath + `.image="i:1"`}},
		{"path", `.spec.template.spec.containers[5].image`, nil},
		{"path", `.spec.template.spec.containers[0,1].image`, []string{containerPath + `.image="i:1"`, containerPath + `.image="s:1"`}},
		{"path", `.spec.template.spec.containers[?(@.name=="side")].image`, []string{containerPath + `.image="s:1"`}},
		{"path", `.spec.template.spec.containers[?(@.name!="side")].image`, []string{containerPath + `.image="i:1"`}},
		{"path", `.spec.template.spec.containers[?(@.ports)].image`, []string{containerPath + `.image="i:1"`}},
		{"path", `.spec.template.spec.containers[?(@.ports[0]>79)].image`, []string{containerPath + `.image="i:1"`}},
		{"path", `.spec.template.spec.containers[?(@.ports[0]<=79)].image`, nil},
		{"path", `..image`, []string{containerPath + `.image="i:1"`, containerPath + `.image="s:1"`}},
		{"path", `.metadata.annotations.example\.com/a`, []string{`metadata.annotations.example.com/a="1"`}},
		{"path", `.metadata.annotations['example\.com/a']`, []string{`metadata.annotations.example.com/a="1"`}},
		{"path", `.spec`, removed(parsed(t, sampleObject)["spec"], nil)},

		{"pointer", `/spec/replicas`, []string{"spec.replicas=3"}},
		{"pointer", `/metadata/annotations/example.com~1a`, []string{`metadata.annotations.example.com/a="1"`}},
		{"pointer", `/spec/template/spec/containers/1`, []string{containerPath + `.image="s:1"`, containerPath + `.name="side"`}},
		{"pointer", `/spec/template/spec/containers/2`, nil},
		{"pointer", `/spec/template/spec/containers/-`, nil},
		{"pointer", `/spec/none/deeper`, nil},
		{"pointer", `/spec/replicas/deeper`, nil},
		{"pointer", `/`, nil},

		{"jq", `.spec.replicas`, []string{"spec.replicas=3"}},
		{"jq", `.spec.replicas, .spec.paused`, []string{"spec.paused=true", "spec.replicas=3"}},
		{"jq", `.spec["ratio"]`, []string{"spec.ratio=0.5"}},
		{"jq", `.spec.none.deeper`, nil},
		{"jq", `.spec.template.spec.containers[] | select(.name == "app") | .env[] | select(.name == "MODE")`, []string{containerPath + `.env[].name="MODE"`, containerPath + `.env[].value="x"`}},
		{"jq", `.spec.template.spec.containers[].ports[1:]?`, []string{containerPath + ".ports[]=443", containerPath + ".ports[]=8080"}},
		{"jq", `.spec.template.spec.containers[0].ports[-1]`, []string{containerPath + ".ports[]=8080"}},
		{"jq", `.spec.template.spec.containers[0].ports[] | select(. > 80 and . < 500)`, []string{containerPath + ".ports[]=443"}},
		{"jq", `.. | select(type == "object" and has("image")) | .image`, []string{containerPath + `.image="i:1"`, containerPath + `.image="s:1"`}},
		{"jq", `.metadata.annotations | .[keys[] | select(startswith("example.com/"))]`, []string{`metadata.annotations.example.com/a="1"`}},
		{"jq", `.spec.template.spec.containers[] | select(any(.env[]?; .value == "x")).image`, []string{containerPath + `.image="i:1"`}},
		{"jq", `.spec.template.spec.containers[] | select(.image | test("^s:")) | .image`, []string{containerPath + `.image="s:1"`}},
		{"jq", `.spec.template.spec.containers[] | select(.ports | contains([80])?) | .image`, []string{containerPath + `.image="i:1"`}},
		{"jq", `.spec.template.spec.containers[] | select(.name | IN("app", "side") | not)`, nil},
		{"jq", `first(.spec.template.spec.containers[]).image`, []string{containerPath + `.image="i:1"`}},
		{"jq", `if .spec.paused then .spec.replicas else .spec.ratio end`, []string{"spec.replicas=3"}},
		{"jq", `empty`, nil},
	} {
		t.Run(c.notation+" "+c.expression, func(t *testing.T) {
			o := parsed(t, sampleObject)
			want := c.want
			if c.expression == ".spec" {
				for i := range want {
					want[i] = "spec." + want[i]
				}
			}
			got, err := left(t, in(c.notation, c.expression), o)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, removed(o, got)); d != "" {
				t.Errorf("removed (-want +got)\n%s", d)
			}
		})
	}
}

func in(notation, expression string) workv1.IgnoreField {
	switch notation {
	case "path":
		return workv1.IgnoreField{JSONPaths: []string{expression}}
	case "pointer":
		return workv1.IgnoreField{JSONPointers: []string{expression}}
	}
	return workv1.IgnoreField{JQPathExpressions: []string{expression}}
}

func TestIgnoreFields_Refuse(t *testing.T) {
	for _, c := range []struct{ notation, expression, want string }{
		{"path", `.spec[`, `JSON path error in '.spec[': unterminated array`},
		{"path", `.spec.template.spec.containers[0]`, `it must end with the name of a field`},
		{"path", ``, `it selects the whole object`},
		{"path", `.`, ``},
		{"path", `{.a}{.b}`, `it must be one path`},
		{"path", `{range .a}{.b}{end}`, `it must be one path`},
		{"path", `range .b`, ``},
		{"path", `.spec[?(@.a==1)].b`, `only a list can be filtered`},
		{"path", `.spec.template.spec.containers[?(@.name==1)].b`, `incompatible types for comparison`},
		{"path", `.spec.template.spec.containers[::0].b`, `step must be > 0`},
		{"path", "." + strings.Repeat("a", maxExpression), `it is longer than 4096 bytes`},

		{"pointer", ``, `JSON Pointer error in '': it selects the whole object`},
		{"pointer", `spec/replicas`, `JSON Pointer error in 'spec/replicas': it must begin with "/"`},
		{"pointer", `/spec/~2`, `must be written as "~0"`},
		{"pointer", `/spec/template/spec/containers/x`, `"x" is no position in a list`},
		{"pointer", `/spec/template/spec/containers/01`, `"01" is no position in a list`},

		{"jq", `.spec[`, `JQ expression error in '.spec[': unexpected EOF`},
		{"jq", `.`, `it selects the whole object`},
		{"jq", `1`, `invalid path`},
		{"jq", `.spec | length`, `invalid path`},
		{"jq", `.spec.replicas[]`, `cannot iterate over: number (3)`},
		{"jq", `.spec) , (.metadata`, `unexpected token`},
		{"jq", `.spec.replicas += 1`, `the operator += cannot be used here`},
		{"jq", `.spec[.a + .b]`, `the operator + cannot be used here`},
		{"jq", `[limit(1000000000; repeat(1))]`, `a text, list or object with computed content cannot be used here`},
		{"jq", `.[range(1000000000)]`, `range/1 cannot be used here`},
		{"jq", `recurse(.)`, `recurse/1 cannot be used here`},
		{"jq", `def f: f; f`, `a definition cannot be used here`},
		{"jq", `. as $x | .spec`, `a variable cannot be used here`},
		{"jq", `.["\(.a)"]`, `computed content cannot be used here`},
		{"jq", `$ENV.HOME`, `$ENV/0 cannot be used here`},
		{"jq", `env.HOME`, `env/0 cannot be used here`},
		{"jq", `input`, `input/0 cannot be used here`},
		{"jq", `reduce .[] as $x (.; .)`, `cannot be used here`},
		{"jq", `@json`, `cannot be used here`},
		{"jq", `.spec | contains(.)`, `contains of something computed cannot be used here`},
		{"jq", `.spec | test("` + strings.Repeat("a", 300) + `")`, `a regular expression is longer than 256 bytes`},
		{"jq", strings.Repeat(" ", maxExpression) + ".spec", `it is longer than 4096 bytes`},
		{"jq", strings.Repeat("(.,.)|", 40) + ".spec", `it takes too many steps`},
		{"jq", strings.Repeat("..|", 60) + ".spec?", `it takes too many steps`},
		{"jq", `.spec.none[0:99999999999999999999]`, ``},
	} {
		t.Run(c.notation+" "+c.expression[:min(40, len(c.expression))], func(t *testing.T) {
			_, err := left(t, in(c.notation, c.expression), parsed(t, sampleObject))
			if c.want == "" && err == nil {
				return // the expression is rejected or selects nothing
			}
			var e *conditions.IgnoreFieldsError
			if !errors.As(err, &e) || !Permanent(err) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// On the live object, the paths that an expression found before it failed count.
func TestIgnoreFields_LenientOnTheObject(t *testing.T) {
	o := parsed(t, sampleObject)
	i, err := ignoredIn(t.Context(), []workv1.IgnoreField{in("jq", `.spec.replicas, .spec.none[], .spec.paused`), in("path", `.spec.ratio`)}, o, true)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"spec.ratio=0.5", "spec.replicas=3"}, removed(o, i.present.without(o))); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	_, err = ignoredIn(t.Context(), []workv1.IgnoreField{in("jq", strings.Repeat("(.,.)|", 40)+".spec")}, o, true)
	if !errors.Is(err, errTooManySteps) {
		t.Errorf("got %v", err)
	}
}

func TestIgnoreFields_AreBoundedTogether(t *testing.T) {
	many := make([]string, 200)
	for i := range many {
		many[i] = ".spec.replicas"
	}
	_, err := ignoredIn(t.Context(), []workv1.IgnoreField{{JSONPaths: many}}, parsed(t, sampleObject), false)
	if !errors.Is(err, errTooManySteps) {
		t.Errorf("got %v", err)
	}
}

// Functions that read each part of a value for each part of another one are paid before the call, and so are
// stored results. Each of these took seconds to minutes, or gigabytes.
func TestIgnoreFields_ProductsArePaidBeforehand(t *testing.T) {
	list := make([]any, 3_000)
	for i := range list {
		list[i] = map[string]any{}
	}
	list[len(list)-1] = map[string]any{"a": int64(1)}
	numbers := make([]any, 6_000)
	for i := range numbers {
		numbers[i] = int64(1)
	}
	half := slices.Clone(numbers[:3_000])
	half[len(half)-1] = int64(2)
	fields := map[string]any{}
	for i := range 3_000 {
		fields["f"+strconv.Itoa(i)] = int64(i)
	}
	o := map[string]any{"list": list, "numbers": numbers, "half": half, "fields": fields, "text": strings.Repeat("x", 1_000_000), "nines": strings.Repeat("9", 1_000_000)}
	const thousandTimes, hundredTimes = "(.,.)|(.,.)|(.,.)|(.,.)|(.,.)|(.,.)|(.,.)|(.,.)|(.,.)|(.,.)|", "(.,.)|(.,.)|(.,.)|(.,.)|(.,.)|(.,.)|(.,.)|"
	for name, c := range map[string]struct{ notation, expression, want string }{
		"contains":        {"jq", `.list | select(contains([` + strings.TrimSuffix(strings.Repeat("{a:1},", 600), ",") + `]))`, "it takes too many steps"},
		"test":            {"jq", `select(.text | test("` + strings.Repeat("x{1000}", 30) + `y")).text`, "it takes too many steps"},
		"list in list":    {"jq", `select(.numbers[.half] != []).text`, "a list cannot be used in brackets here"},
		"written list":    {"jq", `select(.numbers[[1,1,1]] != []).text`, "a list cannot be used in brackets here"},
		"slices":          {"jq", strings.Repeat("(.,.)|", 10) + `.numbers[0:]`, "it takes too many steps"},
		"many times":      {"path", `[` + strings.TrimSuffix(strings.Repeat("'fields',", 400), ",") + `].*.x`, "it takes too many steps"},
		"inside":          {"jq", `.list | select(inside([` + strings.TrimSuffix(strings.Repeat("{a:1},", 600), ",") + `]))`, "it takes too many steps"},
		"a long number":   {"jq", `select((.nines | tonumber) != 1).text`, "it takes too many steps"},
		"comparing":       {"jq", thousandTimes + `select(.numbers == .half).text`, "it takes too many steps"},
		"not the same":    {"jq", thousandTimes + `select(.numbers != .half).text`, "it takes too many steps"},
		"one of":          {"jq", thousandTimes + `select(IN(.numbers; .half)).text`, "it takes too many steps"},
		"lower case":      {"jq", hundredTimes + `select((.text | ascii_downcase) == "x").text`, "it takes too many steps"},
		"length of texts": {"jq", hundredTimes + `select((.text | length) == 1).text`, "it takes too many steps"},
		"keys":            {"jq", thousandTimes + `select((.fields | keys) == []).text`, "it takes too many steps"},
		"slice of few":    {"path", `[` + strings.TrimSuffix(strings.Repeat("'numbers',", 400), ",") + `][0:6000].x`, "it takes too many steps"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ignoredIn(t.Context(), []workv1.IgnoreField{in(c.notation, c.expression)}, o, false)
			if err == nil || !strings.Contains(err.Error(), c.want) && !errors.Is(err, context.DeadlineExceeded) { // on a slow machine
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	// Useful expressions on such an object are within the limits.
	for _, c := range []struct{ notation, expression string }{
		{"jq", `.list | select(contains([{a:1}])) | .[0]`}, {"jq", `select(.text | test("^x+$")).text`}, {"jq", `.numbers[0:]`}, {"jq", `select((.text | length) == 1000000).numbers`}, {"jq", `select(.numbers == .half | not).text`}, {"jq", `.fields | .[keys[0]]`},
		{"path", `.fields.f7`}, {"path", `.list[*].a`}, {"path", `..f7`},
	} {
		if _, err := ignoredIn(t.Context(), []workv1.IgnoreField{in(c.notation, c.expression)}, o, false); err != nil {
			t.Errorf("%s: %v", c.expression, err)
		}
	}
}

// jqCalls has a call of each function that takes arguments; the others are called by name.
var jqCalls = map[string]string{
	"select": "select(.)", "any": "any(.[]?; .)", "all": "all(.[]?; .)", "first": "first(.[]?)", "last": "last(.[]?)", "has": `has("x")`,
	"startswith": `startswith("x")`, "endswith": `endswith("x")`, "IN": `IN(.)`, "getpath": `getpath(["a"])`,
	"contains": `contains({a: "x"})`, "inside": `inside(["x"])`, "test": `test("(x*)*y")`,
}

// For any arguments, the call of a function ends soon. The limit is 100 ms, or 200 times the present time of an
// expression that does nothing. A slower call gets further tries, because other processes use the machine too.
func TestIgnoreFields_WorstCallOfEachFunction(t *testing.T) {
	list, fields := make([]any, 10_000), map[string]any{}
	for i := range list {
		list[i] = int64(i)
		fields["f"+strconv.Itoa(i)] = "x"
	}
	var nested any = "x"
	for range 1_000 {
		nested = []any{nested}
	}
	const length = 400_000
	o := map[string]any{"list": list, "fields": fields, "nested": nested, "text": strings.Repeat("x", length), "nines": strings.Repeat("9", length), "dots": "0." + strings.Repeat("9", length)}
	least := func(expression string, enough time.Duration) (took time.Duration) {
		for range 5 {
			var err error
			d := complexity.Time(t, func() { _, err = ignoredIn(t.Context(), []workv1.IgnoreField{in("jq", expression)}, o, false) })
			if took == 0 || d < took {
				took = d
			}
			if err != nil && strings.Contains(err.Error(), "select fields by paths") {
				t.Fatal(err) // the function was not called
			}
			if took <= enough {
				return took
			}
		}
		return took
	}
	for _, name := range slices.Concat(jqFilters, jqComparisons) {
		call := jqCalls[name]
		if call == "" {
			call = name
		}
		for field := range o {
			x := `select((.` + field + ` | ` + call + `) == "y").text`
			took := least(x, 100*time.Millisecond)
			if took > 100*time.Millisecond && took > 200*least(".nothing", 0) {
				t.Errorf("%s took %v, nothing takes %v", x, took, least(".nothing", 0))
			}
		}
	}
}

// An exceeded time proves nothing about the expression: it is retried.
func TestIgnoreFields_TimeIsNotPermanent(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	_, err := ignoredIn(ctx, []workv1.IgnoreField{in("jq", `.spec.replicas`)}, parsed(t, sampleObject), false)
	var e *conditions.IgnoreFieldsError
	if !errors.As(err, &e) || Permanent(err) || !strings.Contains(err.Error(), "it takes longer than 1s, or all of the manifest longer than 5s") {
		t.Errorf("got %v", err)
	}
}

func TestIgnoreFields_Conditions(t *testing.T) {
	i, err := ignoredIn(t.Context(), []workv1.IgnoreField{
		{JSONPointers: []string{"/spec/replicas"}},
		{Condition: workv1.IgnoreFieldsConditionOnSpokePresent, JSONPointers: []string{"/spec/paused"}},
		{Condition: workv1.IgnoreFieldsConditionOnSpokeChange, JSONPointers: []string{"/spec/ratio"}},
	}, parsed(t, sampleObject), false)
	if err != nil {
		t.Fatal(err)
	}
	o := parsed(t, sampleObject)
	if d := cmp.Diff([]string{"spec.paused=true", "spec.replicas=3"}, removed(o, i.present.without(o))); d != "" {
		t.Errorf("present (-want +got)\n%s", d)
	}
	if d := cmp.Diff([]string{"spec.ratio=0.5"}, removed(o, i.change.without(o))); d != "" {
		t.Errorf("change (-want +got)\n%s", d)
	}
}

// FuzzIgnoreFields: any expression selects existing paths in an unmodified object, or is rejected.
func FuzzIgnoreFields(f *testing.F) {
	for _, seed := range []string{
		`.spec.template.spec.containers[?(@.name=="side")].image`, `..image`, `{range .a}{.b}{end}`, `.metadata.annotations['example\.com/a']`, `.a[0,1,*:2].b`,
		`/spec/template/spec/containers/1`, `/metadata/annotations/example.com~1a`, `//~`,
		`.spec.template.spec.containers[] | select(.name == "app") | .env[] | select(.name == "MODE")`, `.. | select(has("image")?) | .image`,
		`(.,.)|(.,.)|.[1:-1]`, `first(.a[]), .b[-1:], if .a then .b else .c end`, `.a as $x | reduce .[] as $y (0; . + $y)`, `try error catch .`, `.["\(1)"]`, `getpath(["spec","replicas"])`, `.spec | contains({a:[1,"x"]})`,
		`.spec | select(.template | inside([{}]) | not) | .template.spec.containers[0:].name`, `select(.kind | test("x{3}"; "g"), test(["D", "i"])).spec`, `.spec[.a[]]?`, `['spec','spec'].*.x`,
	} {
		f.Add(seed, sampleObject)
	}
	f.Fuzz(func(t *testing.T, expression, text string) {
		u := &struct{ Object map[string]any }{}
		if json.Unmarshal([]byte(text), &u.Object) != nil || u.Object == nil || len(text) > 4096 {
			return
		}
		o := runtime.DeepCopyJSON(integers(u.Object).(map[string]any))
		for _, notation := range []string{"path", "pointer", "jq"} {
			got, err := left(t, in(notation, expression), o)
			var e *conditions.IgnoreFieldsError
			if err != nil && !errors.As(err, &e) {
				t.Fatalf("%s: %v", notation, err)
			}
			if err == nil && len(removed(got, o)) > 0 {
				t.Fatalf("%s: something was added: %v", notation, removed(got, o))
			}
		}
	})
}

// integers converts whole numbers to int64, as the API machinery does.
func integers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = integers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	}
	return v
}
