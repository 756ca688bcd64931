package conditionrules_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/agent/conditionrules"
)

// BenchmarkEvaluate evaluates each of some typical rules on a typical object.
func BenchmarkEvaluate(b *testing.B) {
	for name, x := range map[string]string{
		"fields":    "object.spec.strands == object.status.strands",
		"condition": "object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
		"optional":  "object.?status.?strands.orValue(0) >= 3 && has(object.metadata.labels)",
		"texts":     "object.metadata.name.startsWith('r') && 'a' in object.metadata.labels",
		"pattern":   "object.spec.version.matches('^[0-9]+[.]') && object.spec.version.findAll('[0-9]+').size() == 3",
		"quantity":  "quantity(object.spec.load).isGreaterThan(quantity('1'))",
	} {
		b.Run(name, func(b *testing.B) {
			var e conditionrules.Evaluator
			o, rules := object(b, rope), []workv1.ConditionRule{with(cel("C", x), "", "'strands: ' + string(object.spec.strands)")}
			for b.Loop() {
				if got := e.Evaluate(b.Context(), o, rules); got[0].Status != metav1.ConditionTrue {
					b.Fatalf("got %+v", got)
				}
			}
		})
	}
}
