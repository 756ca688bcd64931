package conditionrules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	workv1 "open-cluster-management.io/api/work/v1"
)

// TypeRulesValid is the condition for rules that cannot be evaluated because of the condition they name. It
// exists only while it is False.
const TypeRulesValid = "ConditionRulesValid"

const (
	// maxType is the length of the longest condition type that the API accepts.
	maxType = 316
	// maxMessage exceeds the API's limit of a message, so that a later truncation shows that it was longer.
	maxMessage = 33 << 10
)

// overBudget returns the error that the rules of a manifest together cost too much.
func (r *run) overBudget() error {
	return &costError{fmt.Sprintf("CEL evaluation budget exceeded: the rules of one manifest may take %d units together: use fewer or simpler ones", r.bounds().manifest)}
}

// at adds the rule and the expression to a cost error.
func at(err error, rule workv1.ConditionRule, expression string) error {
	if errors.As(err, new(*costError)) {
		return fmt.Errorf("%s of condition rule %q: %w", expression, rule.Condition, err)
	}
	return err
}

// Outcome is the condition that a rule yields. Its reason begins with "ConditionRule".
type Outcome struct {
	Type            string
	Status          metav1.ConditionStatus
	Reason, Message string
}

// protected are the conditions that the agent and the hub set themselves.
var protected = []string{
	workv1.ManifestApplied, workv1.ManifestAvailable, "StatusFeedbackSynced", workv1.WorkDeleting, "Deleted", "Delivered", "PersistFailed", "Contested", "StatusTruncated", TypeRulesValid,
}

// Types returns the condition types that rules may yield, each once, and TypeRulesValid instead of the refused
// ones.
func Types(rules []workv1.ConditionRule) []string {
	types, refused := sort(rules)
	if len(refused) > 0 {
		types = append(types, TypeRulesValid)
	}
	return types
}

// sort separates the usable types from the refused rules, with the reasons.
func sort(rules []workv1.ConditionRule) (types []string, refused []string) {
	for _, r := range rules {
		switch problem := refuse(r.Condition); {
		case problem != "":
			refused = append(refused, fmt.Sprintf("condition rule %q: %s", shorten(r.Condition), problem))
		case slices.Contains(types, r.Condition):
			refused = append(refused, fmt.Sprintf("condition rule %q: there is an earlier rule for the same condition, which counts", r.Condition))
		default:
			types = append(types, r.Condition)
		}
	}
	return types, refused
}

// refuse returns why no rule may set a condition, "" if one may.
func refuse(condition string) string {
	switch {
	case slices.Contains(protected, condition):
		return "the agent itself sets this condition, choose another name"
	case len(condition) > maxType:
		return fmt.Sprintf("the name has %d characters, use at most %d", len(condition), maxType)
	}
	if problems := validation.IsQualifiedName(condition); len(problems) > 0 {
		return "this cannot be the type of a condition: " + strings.Join(problems, "; ")
	}
	return ""
}

func shorten(s string) string {
	const enough = 100
	if s = strings.ToValidUTF8(s, "?"); len(s) <= enough {
		return s
	}
	return strings.ToValidUTF8(s[:enough], "") + "…"
}

// Evaluate evaluates the rules on an object, in order. It returns a condition for each, except rules that do
// not apply to the object's kind. obj is not modified.
func (e *Evaluator) Evaluate(ctx context.Context, obj *unstructured.Unstructured, rules []workv1.ConditionRule) []Outcome {
	if len(rules) == 0 {
		return nil
	}
	limits := e.bounds()
	ctx, cancel := context.WithTimeoutCause(ctx, limits.time, fmt.Errorf("the rules of this manifest take longer than %v: use fewer or simpler ones", limits.time))
	defer cancel()
	run := &run{Evaluator: e, object: obj, left: limits.manifest}
	types, refused := sort(rules)
	var outcomes []Outcome
	for _, r := range rules {
		if len(types) == 0 || r.Condition != types[0] {
			continue // refused
		}
		types = types[1:]
		if o, concerned := run.follow(ctx, r); concerned {
			o.Type, o.Message = r.Condition, limited(o.Message)
			outcomes = append(outcomes, o)
		}
	}
	if len(refused) > 0 {
		outcomes = append(outcomes, Outcome{Type: TypeRulesValid, Status: metav1.ConditionFalse, Reason: workv1.ConditionRuleInvalid, Message: strings.Join(refused, "; ")})
	}
	return outcomes
}

// limited copies a message, so that it does not keep a large object in memory.
func limited(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.Clone(message[:maxMessage])
}

// run is one call of Evaluate.
type run struct {
	*Evaluator
	object *unstructured.Unstructured
	left   uint64 // units of CEL
}

// follow evaluates one rule. concerned is false if it does not apply to such an object.
func (r *run) follow(ctx context.Context, rule workv1.ConditionRule) (o Outcome, concerned bool) {
	var result bool
	var message string // of the rule itself
	var err error
	switch rule.Type {
	case workv1.WellKnownConditionsType:
		known := wellKnown[r.object.GroupVersionKind()]
		if known == nil || rule.Condition != workv1.WorkComplete {
			return Outcome{}, false
		}
		result, message, err = known(r.object.Object)
	case workv1.CelConditionExpressionsType:
		result, err = r.all(ctx, rule)
	default:
		return Outcome{Status: metav1.ConditionUnknown, Reason: workv1.ConditionRuleInvalid, Message: fmt.Sprintf("unrecognized condition rule type %s", shorten(string(rule.Type)))}, true
	}
	if err != nil {
		return failed(err), true
	}
	o = Outcome{Status: metav1.ConditionFalse, Reason: workv1.ConditionRuleEvaluated}
	if result {
		o.Status = metav1.ConditionTrue
	}
	o.Message = r.message(ctx, rule, result, message)
	return o, true
}

// failed returns the condition of a rule whose evaluation failed.
func failed(err error) Outcome {
	if errors.As(err, new(*internalError)) {
		return Outcome{Status: metav1.ConditionUnknown, Reason: workv1.ConditionRuleInternalError, Message: err.Error()}
	}
	return Outcome{Status: metav1.ConditionFalse, Reason: workv1.ConditionRuleExpressionError, Message: err.Error()}
}

// all returns the conjunction of expressions; it stops at the first false one.
func (r *run) all(ctx context.Context, rule workv1.ConditionRule) (bool, error) {
	for i, x := range rule.CelExpressions {
		v, err := r.evaluate(ctx, program{text: x}, map[string]any{"object": r.object.Object})
		if err != nil {
			return false, at(err, rule, fmt.Sprintf("celExpressions[%d]", i))
		}
		b, ok := v.Value().(bool)
		if !ok {
			return false, fmt.Errorf("expected bool result, got %T", v.Value())
		}
		if !b {
			return false, nil
		}
	}
	return true, nil
}

// excerpt starts the lines in which CEL shows an expression that does not compile.
const excerpt = "\n | "

// message returns the text for a result: that of the rule's message expression, else the rule's message, else
// own, else a general one. An error replaces the text and does not change the result.
func (r *run) message(ctx context.Context, rule workv1.ConditionRule, result bool, own string) string {
	if rule.MessageExpression != "" {
		v, err := r.evaluate(ctx, program{text: rule.MessageExpression, message: true}, map[string]any{"object": r.object.Object, "result": result})
		if err != nil {
			text, _, _ := strings.Cut(at(err, rule, "messageExpression").Error(), excerpt)
			return text
		}
		text, ok := v.Value().(string)
		switch {
		case !ok:
			return fmt.Sprintf("expected message expression to have a string result, got %T", v.Value())
		case text != "":
			return text
		}
	}
	switch {
	case rule.Message != "":
		return rule.Message
	case own != "":
		return own
	case result:
		return "Manifest is " + rule.Condition
	}
	return "Manifest is not " + rule.Condition
}
