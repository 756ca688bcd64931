package rule

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"
)

// bigList is an object with a list of n numbers and a text of as many characters.
func bigList(t testing.TB, n int) *unstructured.Unstructured {
	list := strings.TrimSuffix(strings.Repeat("1,", n), ",")
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON([]byte(`{"apiVersion":"v1","kind":"X","list":[` + list + `],"text":"` + strings.Repeat("x", n) + `"}`)); err != nil {
		t.Fatal(err)
	}
	return o
}

// tight are limits for tests, in the proportions of the usual ones.
var tight = limits{expression: 20_000, manifest: 200_000, time: time.Hour}

func withMessage(r workv1.ConditionRule, expression string) workv1.ConditionRule {
	r.MessageExpression = expression
	return r
}

func cost(condition string, expression string) workv1.ConditionRule {
	return workv1.ConditionRule{Condition: condition, Type: workv1.CelConditionExpressionsType, CelExpressions: []string{expression}}
}

// Whatever an expression does, it ends soon, and does not fill the memory.
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
	const expression = "object.list.all(a, object.list.all(b, a + b > 0))" // most of what one may cost
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
	if last.Status != metav1.ConditionFalse || last.Reason != workv1.ConditionRuleExpressionError || last.Message != "CEL evaluation budget exceeded" {
		t.Errorf("got %+v", last)
	}
	// The next manifest has its own.
	if o := e.Evaluate(t.Context(), bigList(t, 40), rules[:1]); o[0].Status != metav1.ConditionTrue {
		t.Errorf("got %+v", o[0])
	}
}

// The usual limits allow what a rule needs on a large object, and end what it
// does not within the time.
func TestEvaluator_UsualLimits(t *testing.T) {
	patient := usual
	patient.time = time.Hour // whatever the machine
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
