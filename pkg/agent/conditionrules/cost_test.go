package conditionrules

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
)

// bigList returns an object with a list of n numbers and a text of n characters.
func bigList(t testing.TB, n int) *unstructured.Unstructured {
	list := strings.TrimSuffix(strings.Repeat("1,", n), ",")
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(`{"apiVersion":"v1","kind":"X","list":[` + list + `],"text":"` + strings.Repeat("x", n) + `"}`)); err != nil {
		t.Fatal(err)
	}
	return o
}

// tight has limits for tests, in the same proportions as the usual ones.
var tight = limits{expression: 20_000, manifest: 200_000, time: time.Hour}

func withMessage(r workv1.ConditionRule, expression string) workv1.ConditionRule {
	r.MessageExpression = expression
	return r
}

func cost(condition string, expression string) workv1.ConditionRule {
	return workv1.ConditionRule{Condition: condition, Type: workv1.CelConditionExpressionsType, CelExpressions: []string{expression}}
}

// Any expression ends soon, and does not fill the memory.
func TestEvaluator_CostIsBounded(t *testing.T) {
	const limit = "operation cancelled: actual cost limit exceeded"
	cubic := "object.list.all(a, object.list.all(b, object.list.all(c, a + b + c > 0)))"
	// Each map makes a value that is twice as large.
	double := func(seed, step string, times int) string {
		return "[" + seed + "]" + strings.Repeat(".map(a, "+step+")", times)
	}
	for name, c := range map[string]struct{ expression, want string }{
		"loops in loops":                   {cubic, limit},
		"texts that double":                {double("object.text", "a + a", 30) + "[0].startsWith('x')", "too large"},
		"lists that double":                {double("object.list", "a + a", 30) + "[0] == [1]", "too large"},
		"size of such a list":              {"size(" + double("object.list", "a + a", 30) + "[0]) > 0", "too large"},
		"nests that double":                {"[" + double("[1]", "[a, a]", 15) + "].all(x, x == " + double("[1]", "[a, a]", 15) + ")", "too large"},
		"nests in a list":                  {double("[1]", "[a, a]", 15) + "[0] in [" + double("[1]", "[a, a]", 15) + "[0]]", "too large"},
		"optionals that double":            {double("1", "optional.of([a, a])", 15) + " == " + double("1", "optional.of([a, a])", 15), "too large"},
		"text in place of every character": {"object.text.replace('', object.text) == ''", "too large"},
		"text for each character":          {"object.text.replace('x', object.text) == ''", "too large"},
		"text between elements":            {"object.list.map(x, 'x').join(object.text) == ''", "too large"},
		"the same text many times":         {"object.list.map(x, object.text).join('') == ''", "too large"},
		"format of many":                   {"'%s'.format([object.list.map(x, object.text)]) == ''", "too large"},
		"format with many digits":          {"'%.999999999f'.format([1.0]) == ''", "precision"},
		"many loops":                       {double("1", "a + a", 40) + "[0] > 1", "the expression has 40 loops (all, exists, exists_one, filter, map), use at most 32"},
		"deep types":                       {double("1", "[[[[[a]]]]]", 30) + " == []", "the expression makes lists and maps in others, more than 100 deep"},
		"copies of copies":                 {"optional.of(1)" + strings.Repeat(".optMap(a, a)", 30) + " == optional.none()", "the expression has 30 times optMap or optFlatMap, use them at most 4 times"},
		"deep nesting":                     {strings.Repeat("{'a':", 200) + "1" + strings.Repeat("}", 200) + " == {}", "recursion"},
		"regular expression":               {"object.text.matches('(x?y){1000}(x?y){1000}y')", "matches: the text is too long for this regular expression"},
		"found by it":                      {"object.text.findAll('(x?y){1000}(x?y){1000}y') == []", "findAll: the text is too long for this regular expression"},
	} {
		t.Run(name, func(t *testing.T) {
			o := (&Evaluator{limits: tight}).Evaluate(t.Context(), bigList(t, 500), []workv1.ConditionRule{cost("C", c.expression)})
			wants := []string{c.want}
			if c.want == "too large" {
				wants = []string{"characters and elements", limit}
			}
			found := false
			for _, w := range wants {
				found = found || strings.Contains(o[0].Message, w)
			}
			if o[0].Status != metav1.ConditionFalse || o[0].Reason != workv1.ConditionRuleExpressionError || !found {
				t.Errorf("got %+v", o[0])
			}

			o = (&Evaluator{limits: tight}).Evaluate(t.Context(), bigList(t, 500), []workv1.ConditionRule{withMessage(cost("C", "true"), "string("+c.expression+")")})
			if found = false; o[0].Status == metav1.ConditionTrue && o[0].Reason == workv1.ConditionRuleEvaluated {
				for _, w := range wants {
					found = found || strings.Contains(o[0].Message, w)
				}
			}
			if !found {
				t.Errorf("as a message: got %+v", o[0])
			}
		})
	}
}

func TestEvaluator_CostOfAManifestIsBounded(t *testing.T) {
	const expression = "object.list.all(a, object.list.all(b, a + b > 0))" // nearly the limit of one expression
	var rules []workv1.ConditionRule
	for i := range 20 {
		rules = append(rules, withMessage(cost(fmt.Sprintf("C%d", i), expression), "string(result)"))
	}
	e := Evaluator{limits: tight}
	o := e.Evaluate(t.Context(), bigList(t, 40), rules)
	if o[0].Status != metav1.ConditionTrue || o[0].Message != "true" {
		t.Fatalf("got %+v", o[0])
	}
	last := o[len(o)-1]
	if last.Status != metav1.ConditionFalse || last.Reason != workv1.ConditionRuleExpressionError ||
		last.Message != `celExpressions[0] of condition rule "C19": CEL evaluation budget exceeded: the rules of one manifest may take 200000 units together: use fewer or simpler ones` {
		t.Errorf("got %+v", last)
	}
	// The next manifest has a budget of its own.
	if o := e.Evaluate(t.Context(), bigList(t, 40), rules[:1]); o[0].Status != metav1.ConditionTrue {
		t.Errorf("got %+v", o[0])
	}
}

// The default limits allow a typical rule on a large object, and end an expensive one within the time.
func TestEvaluator_UsualLimits(t *testing.T) {
	patient := usual
	patient.time = time.Hour // the speed of the machine does not matter
	e := Evaluator{limits: patient}
	large := bigList(t, 1_000)
	o := e.Evaluate(t.Context(), large, []workv1.ConditionRule{cost("C", "object.list.all(x, x == 1) && object.text.contains('x')")})
	if o[0].Status != metav1.ConditionTrue {
		t.Errorf("got %+v", o[0])
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("enough"))
	o = e.Evaluate(ctx, large, []workv1.ConditionRule{cost("C", "object.list.all(x, x == 1)")})
	if o[0].Status != metav1.ConditionFalse || o[0].Reason != workv1.ConditionRuleExpressionError || o[0].Message != "enough" {
		t.Errorf("got %+v", o[0])
	}
}

// Each of these took seconds to hours, or gigabytes, when its cost was counted after the call or not at all. An
// expression cannot catch the error and continue.
func TestEvaluator_IsPaidBeforehand(t *testing.T) {
	object := bigList(t, 100_000)
	object.Object["half"] = strings.Repeat("x", 50_000) + "y"
	object.Object["digits"] = strings.Repeat("9", 1_000_000)
	keys := map[string]any{}
	for i := range 20_000 {
		keys[fmt.Sprint(i)] = int64(i)
	}
	object.Object["map"] = keys
	many := strings.TrimSuffix(strings.Repeat("1,", 3_000), ",")
	patient := usual
	patient.time = time.Hour
	for name, x := range map[string]string{
		"indexOf":              "object.text.indexOf(object.half) < 0",
		"lastIndexOf":          "object.text.lastIndexOf(object.half) < 0",
		"in spite of an or":    "object.list.exists(x, object.text.indexOf(object.half) == 0 || false)",
		"found again":          "object.text.findAll('x.*y|x').size() == 0",
		"found with a border":  `object.text.findAll('\\bx.*y|x').size() == 0`,
		"digits":               "isQuantity(object.digits)",
		"long lists in a loop": "object.list.map(x, [" + many + "]).size() == 0",
		"keys in a loop":       "object.list.all(x, object.map.exists(k, true))",
		"long keys in a loop":  "object.list.all(x, {object.digits: 1}[object.digits] == 1)",
		"sizes in a loop":      "object.list.all(x, size(object.digits) > 0)",
		"zones in a loop":      "object.list.all(x, timestamp('2020-01-01T00:00:00Z').getHours('Europe/Berlin') > 0)",
		"long pattern":         "'x'.matches(object.half)",
		"huge pattern":         "'x'.matches('" + strings.Repeat("x{1000}", 1_000) + "')",
		"refused all the time": "object.list.exists(x, [object.list] == [object.list] && false)",
		"elements":             "object.list.exists(x, -x in object.list)",
	} {
		t.Run(name, func(t *testing.T) {
			o := (&Evaluator{limits: patient}).Evaluate(t.Context(), object, []workv1.ConditionRule{cost("C", x)})
			for _, part := range []string{`celExpressions[0] of condition rule "C": operation cancelled: actual cost limit exceeded: `, ", and an expression may take 1000000 units: use fewer loops, shorter texts or smaller lists"} {
				if o[0].Status != metav1.ConditionFalse || o[0].Reason != workv1.ConditionRuleExpressionError || !strings.Contains(o[0].Message, part) {
					t.Errorf("got %+v, want %q in it", o[0], part)
				}
			}
		})
	}
}

// An agent that stops does not wait for a rule.
func TestEvaluator_EndsWithItsContext(t *testing.T) {
	patient := limits{expression: 1 << 60, manifest: 1 << 60, time: time.Hour}
	ctx, cancel := context.WithCancelCause(t.Context())
	object := bigList(t, 1_000)
	e := &Evaluator{limits: patient}
	go cancel(fmt.Errorf("the agent stops"))
	o := e.Evaluate(ctx, object, []workv1.ConditionRule{cost("C", "object.list.all(a, object.list.all(b, object.list.all(c, object.list.all(d, a + b + c + d > 0))))")})
	if o[0].Message != "the agent stops" {
		t.Errorf("got %+v", o[0])
	}
}

// FindAll has the same matches as the library.
func TestFindAll_MatchesLibrary(t *testing.T) {
	m := newMeter(t.Context(), 1<<50)
	for _, pattern := range []string{"", "a", "a*", "a+", "b|", "(a|b)*", "é", ".", "x", "a?b", "a.*c|a"} {
		for _, text := range []string{"", "a", "aab", "éaéb", "abcabc", "\xff\xfea", "bb"} {
			p := m.compile("findAll", types.String(pattern))
			for _, most := range []int{0, 1, 2, 100} {
				if d := cmp.Diff(p.FindAllString(text, most), p.all(m, text, most)); d != "" {
					t.Errorf("%q in %q, %d (-want +got)\n%s", pattern, text, most, d)
				}
			}
		}
	}
}
