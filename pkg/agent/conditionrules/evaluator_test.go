package conditionrules_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
)

func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return o
}

func cel(condition string, expressions ...string) workv1.ConditionRule {
	return workv1.ConditionRule{Condition: condition, Type: workv1.CelConditionExpressionsType, CelExpressions: expressions}
}

func wellKnown(condition string) workv1.ConditionRule {
	return workv1.ConditionRule{Condition: condition, Type: workv1.WellKnownConditionsType}
}

func with(r workv1.ConditionRule, message, expression string) workv1.ConditionRule {
	r.Message, r.MessageExpression = message, expression
	return r
}

// show writes outcomes as "Type=Status/Reason: message".
func show(outcomes []conditionrules.Outcome) []string {
	var list []string
	for _, o := range outcomes {
		list = append(list, fmt.Sprintf("%s=%s/%s: %s", o.Type, o.Status, o.Reason, o.Message))
	}
	return list
}

func check(t *testing.T, e *conditionrules.Evaluator, obj *unstructured.Unstructured, rules []workv1.ConditionRule, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, show(e.Evaluate(t.Context(), obj, rules))); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestEvaluator_WellKnownConditions(t *testing.T) {
	job := func(conditions string) string {
		return `{"apiVersion":"batch/v1","kind":"Job","status":{"conditions":[` + conditions + `]}}`
	}
	const done, running = "Complete=True/ConditionRuleEvaluated: ", "Complete=False/ConditionRuleEvaluated: "
	for name, c := range map[string]struct {
		object string
		rule   workv1.ConditionRule
		want   []string
	}{
		"job complete":          {job(`{"type":"Complete","status":"True"}`), wellKnown("Complete"), []string{done + "Job is finished"}},
		"job failed":            {job(`{"type":"X","status":"True"},{"type":"Failed","status":"True"}`), wellKnown("Complete"), []string{done + "Job is finished"}},
		"job runs":              {job(`{"type":"Complete","status":"False"},{"type":"Suspended","status":"True"}`), wellKnown("Complete"), []string{running + "Job is not finished"}},
		"job without a status":  {`{"apiVersion":"batch/v1","kind":"Job"}`, wellKnown("Complete"), []string{running + "Job is not finished"}},
		"pod succeeded":         {`{"apiVersion":"v1","kind":"Pod","status":{"phase":"Succeeded"}}`, wellKnown("Complete"), []string{done + "Pod is in phase Succeeded"}},
		"pod failed":            {`{"apiVersion":"v1","kind":"Pod","status":{"phase":"Failed"}}`, wellKnown("Complete"), []string{done + "Pod is in phase Failed"}},
		"pod runs":              {`{"apiVersion":"v1","kind":"Pod","status":{"phase":"Running"}}`, wellKnown("Complete"), []string{running + "Pod is in phase Running"}},
		"pod without a phase":   {`{"apiVersion":"v1","kind":"Pod","status":{}}`, wellKnown("Complete"), []string{"Complete=False/ConditionRuleExpressionError: no such key: phase"}},
		"pod without a status":  {`{"apiVersion":"v1","kind":"Pod"}`, wellKnown("Complete"), []string{"Complete=False/ConditionRuleExpressionError: no such key: status"}},
		"another kind":          {`{"apiVersion":"v1","kind":"ConfigMap"}`, wellKnown("Complete"), nil},
		"another version":       {`{"apiVersion":"batch/v1beta1","kind":"Job"}`, wellKnown("Complete"), nil},
		"another condition":     {job(""), wellKnown("Progressing"), nil},
		"message":               {job(""), with(wellKnown("Complete"), "wait for it", ""), []string{running + "wait for it"}},
		"message of expression": {job(""), with(wellKnown("Complete"), "wait for it", `"done: " + string(result)`), []string{running + "done: false"}},
		"unknown type":          {job(""), workv1.ConditionRule{Condition: "Complete", Type: "Guess"}, []string{"Complete=Unknown/ConditionRuleInvalid: unrecognized condition rule type Guess"}},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, &conditionrules.Evaluator{}, object(t, c.object), []workv1.ConditionRule{c.rule}, c.want...)
		})
	}
}

const rope = `{"apiVersion":"example.com/v1","kind":"Rope","metadata":{"name":"r","labels":{"a":"1"}},"spec":{"strands":3,"load":"1500m","range":"10.0.0.0/8","version":"1.2.3"},
	"status":{"conditions":[{"type":"Ready","status":"True"}],"strands":3,"free":{"conditions":[]}}}`

func TestEvaluator_CEL(t *testing.T) {
	const yes, no = "C=True/ConditionRuleEvaluated: Manifest is C", "C=False/ConditionRuleEvaluated: Manifest is not C"
	const broken = "C=False/ConditionRuleExpressionError: "
	for name, c := range map[string]struct {
		rule workv1.ConditionRule
		want string
	}{
		"true":                   {cel("C", "object.spec.strands == object.status.strands"), yes},
		"false":                  {cel("C", "object.spec.strands > 3"), no},
		"no expression":          {cel("C"), yes},
		"all are true":           {cel("C", "true", "object.metadata.name == 'r'"), yes},
		"ends at the first no":   {cel("C", "false", "object.missing == 1"), no},
		"loop":                   {cel("C", "object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')"), yes},
		"filter and map":         {cel("C", "object.status.conditions.filter(c, c.type == 'Ready').map(c, c.status) == ['True']"), yes},
		"has":                    {cel("C", "has(object.status.other)"), no},
		"optionals":              {cel("C", "object.?status.?other.orValue('none') == 'none'"), yes},
		"strings":                {cel("C", "'a-b'.split('-').join('+').replace('+', '.') == 'a.b'"), yes},
		"format":                 {cel("C", "'%d of %s'.format([3, object.metadata.name]) == '3 of r'"), yes},
		"lists":                  {cel("C", "[1,2,3].sum() == 6 && [1] + [2] == [1,2] && size([1] + [2]) == 2 && 2 in [1,2]"), yes},
		"regex":                  {cel("C", "object.spec.version.find('[0-9]+') == '1' && object.spec.version.matches('^1[.]')"), yes},
		"urls":                   {cel("C", "url('https://example.com/x').getHost() == 'example.com'"), yes},
		"quantities":             {cel("C", "quantity(object.spec.load).isGreaterThan(quantity('1'))"), yes},
		"ip and cidr":            {cel("C", "cidr(object.spec.range).containsIP(ip('10.1.2.3'))"), yes},
		"formats":                {cel("C", "!format.dns1123Label().validate('x').hasValue()"), yes},
		"semver":                 {cel("C", "semver(object.spec.version).isGreaterThan(semver('1.0.0'))"), yes},
		"hasConditions":          {cel("C", "hasConditions(object.status)"), yes},
		"hasConditions of none":  {cel("C", "hasConditions(object.status.free) || hasConditions(object.spec)"), no},
		"maps":                   {cel("C", "object.metadata.labels == {'a': '1'} && 'a' in object.metadata.labels && object.metadata.labels != {}"), yes},
		"missing key":            {cel("C", "object.status.missing == 1"), broken + "no such key: missing"},
		"not a bool":             {cel("C", "object.spec.strands"), broken + "expected bool result, got int64"},
		"not a bool, statically": {cel("C", "'x'"), broken + "expected bool result, got string"},
		"does not compile":       {cel("C", "object."), broken + "ERROR: <input>:1:8: Syntax error: no viable alternative at input '.'\n | object.\n | .......^"},
		"no result in rules":     {cel("C", "result"), broken + "ERROR: <input>:1:1: undeclared reference to 'result' (in container '')\n | result\n | ^"},
		"wrong types":            {cel("C", "object.spec.strands + 'x' == ''"), broken + "no such overload"},
		"messages are not made":  {cel("C", "google.protobuf.ListValue{values: []} == []"), broken + "messages of protocol buffers cannot be made in rules"},
		"too long":               {cel("C", strings.Repeat(" ", 20_000)), broken + "the expression has 20000 bytes, use at most 8192"},

		"message":                                  {with(cel("C", "true"), "fine", ""), "C=True/ConditionRuleEvaluated: fine"},
		"message expression":                       {with(cel("C", "false"), "fine", "result ? 'yes' : 'no ' + object.metadata.name"), "C=False/ConditionRuleEvaluated: no r"},
		"empty message expression":                 {with(cel("C", "true"), "fine", "''"), "C=True/ConditionRuleEvaluated: fine"},
		"empty both":                               {with(cel("C", "true"), "", "''"), yes},
		"failing message expression":               {with(cel("C", "true"), "fine", "object.status.missing"), "C=True/ConditionRuleEvaluated: no such key: missing"},
		"not a bool but a list":                    {cel("C", "[true]"), broken + "expected bool result, got []ref.Val"},
		"message expression that does not compile": {with(cel("C", "true"), "fine", "resul"), "C=True/ConditionRuleEvaluated: ERROR: <input>:1:1: undeclared reference to 'resul' (in container '')"},
		"message expression of a number":           {with(cel("C", "true"), "fine", "1"), "C=True/ConditionRuleEvaluated: expected message expression to have a string result, got int64"},
		"no message for an error":                  {with(cel("C", "object.x"), "fine", "'fine'"), broken + "no such key: x"},
	} {
		t.Run(name, func(t *testing.T) {
			check(t, &conditionrules.Evaluator{}, object(t, rope), []workv1.ConditionRule{c.rule}, c.want)
		})
	}
}

func TestEvaluator_MessagesAreLimited(t *testing.T) {
	text := strings.Repeat("x", 500_000)
	o := (&conditionrules.Evaluator{}).Evaluate(t.Context(), object(t, `{"apiVersion":"v1","kind":"X","t":"`+text+`"}`), []workv1.ConditionRule{with(cel("C", "true"), "", "object.t")})
	if got := o[0].Message; got != text[:33<<10] {
		t.Errorf("%d bytes", len(got))
	}
}

func TestEvaluator_ConditionsOfTheAgentAreProtected(t *testing.T) {
	long := strings.Repeat("x", 400)
	rules := []workv1.ConditionRule{
		cel("Applied", "false"), cel("Available", "false"), cel("StatusFeedbackSynced", "false"), cel("Deleting", "true"), cel("Deleted", "true"), cel("Delivered", "false"),
		cel("Good", "true"), cel("not good", "true"), cel("", "true"), cel(long, "true"), cel("Good", "false"), cel("example.com/Fine", "false"),
	}
	const own = "the agent itself sets this condition, choose another name"
	const qualified = "this cannot be the type of a condition: "
	var e conditionrules.Evaluator
	outcomes := e.Evaluate(t.Context(), object(t, rope), rules)
	want := []string{"Good=True/ConditionRuleEvaluated: Manifest is Good", "example.com/Fine=False/ConditionRuleEvaluated: Manifest is not example.com/Fine"}
	if d := cmp.Diff(want, show(outcomes[:2])); d != "" || len(outcomes) != 3 {
		t.Fatalf("%d outcomes (-want +got)\n%s", len(outcomes), d)
	}
	if d := cmp.Diff([]string{"Good", "example.com/Fine", "ConditionRulesValid"}, conditionrules.Types(rules)); d != "" {
		t.Error(d)
	}
	last := outcomes[2]
	if last.Type != conditionrules.TypeRulesValid || last.Status != metav1.ConditionFalse || last.Reason != workv1.ConditionRuleInvalid {
		t.Errorf("got %+v", last)
	}
	parts := strings.Split(last.Message, "; condition rule ")
	if len(parts) != 10 {
		t.Fatalf("got %q", parts)
	}
	for i, name := range []string{`condition rule "Applied"`, `"Available"`, `"StatusFeedbackSynced"`, `"Deleting"`, `"Deleted"`, `"Delivered"`} {
		if parts[i] != name+": "+own {
			t.Errorf("got %q", parts[i])
		}
	}
	for i, beginning := range map[int]string{6: `"not good": ` + qualified, 7: `"": ` + qualified, 8: `"` + long[:100] + `…": the name has 400 characters, use at most 316`, 9: `"Good": there is an earlier rule`} {
		if !strings.HasPrefix(parts[i], beginning) {
			t.Errorf("got %q, want %q…", parts[i], beginning)
		}
	}
}

func TestEvaluator_MayBeUsedByMany(t *testing.T) {
	var e conditionrules.Evaluator
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			obj := object(t, rope)
			for j := range 40 { // more expressions than the cache holds
				x := fmt.Sprintf("object.spec.strands < %d", 4+i*40+j)
				if o := e.Evaluate(t.Context(), obj, []workv1.ConditionRule{cel("C", x)}); o[0].Status != metav1.ConditionTrue {
					t.Errorf("got %+v", o[0])
				}
			}
		})
	}
	all.Wait()
}
