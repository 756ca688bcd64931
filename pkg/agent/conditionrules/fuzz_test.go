package conditionrules_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
)

// FuzzEvaluate: for any rule and object, the evaluation ends without a panic and returns one condition.
func FuzzEvaluate(f *testing.F) {
	f.Add("C", "object.spec.strands == 3", "'strands: ' + string(object.spec.strands)", []byte(rope))
	f.Add("C", "object.status.conditions.exists(c, c.type == 'Ready')", "result ? 'a' : 'b'", []byte(rope))
	f.Add("Applied", "hasConditions(object.status)", "", []byte(rope))
	f.Add("C", "object.?x.orValue([1]).map(a, [a, a]) == [[1, 1]]", "'%s'.format([object.metadata.name])", []byte(rope))
	f.Add("C", "object.metadata.name.indexOf('r') == 0 && object.spec.version.findAll('x.*y|.', 2).size() == 2", "'a'.replace('', object.kind)", []byte(rope))
	f.Add("C", "object.status.conditions.all(c, c[object.kind == '' ? 'x' : 'type'] in ['Ready'])", "quantity(object.spec.load).asInteger() > 1 ? '' : 'x'", []byte(rope))
	var e conditionrules.Evaluator
	f.Fuzz(func(t *testing.T, condition, expression, message string, object []byte) {
		o := &unstructured.Unstructured{}
		if o.UnmarshalJSON(object) != nil {
			return
		}
		outcomes := e.Evaluate(t.Context(), o, []workv1.ConditionRule{with(cel(condition, expression), "", message)})
		if len(outcomes) != 1 {
			t.Fatalf("got %+v", outcomes)
		}
		got := outcomes[0]
		switch {
		case got.Type == conditionrules.TypeRulesValid:
			if got.Reason != workv1.ConditionRuleInvalid || got.Status != metav1.ConditionFalse {
				t.Fatalf("got %+v", got)
			}
		case got.Type != condition, got.Reason != workv1.ConditionRuleEvaluated && got.Reason != workv1.ConditionRuleExpressionError:
			t.Fatalf("got %+v", got)
		}
	})
}
