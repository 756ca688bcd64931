package conditionrules

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	testcost "github.com/hawser-io/hawser/internal/testkit/complexity"
)

// worstObject returns an object with the slowest values for functions, of about n characters or elements each.
func worstObject(n int) *unstructured.Unstructured {
	list := func(n int, of any) []any {
		l := make([]any, n)
		for i := range l {
			l[i] = of
		}
		return l
	}
	keys := map[string]any{}
	for i := range n / 10 {
		keys[fmt.Sprintf("key-%06d", i)] = int64(i)
	}
	root := 1
	for root*root < n {
		root++
	}
	var nested any = int64(1)
	for range min(n/10, 5_000) {
		nested = []any{nested}
	}
	var maps any = strings.Repeat("x", n)
	for range min(n/10, 5_000) {
		maps = map[string]any{"m": maps}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"x": strings.Repeat("x", n), "half": strings.Repeat("x", n/2) + "y", "late": "y" + strings.Repeat("x", n/2), "wide": strings.Repeat("é", n/2), "nines": strings.Repeat("9", n), "colons": strings.Repeat("1:", n/2), "empty": "",
		"url": "http://h/p?" + strings.Repeat("a=b&", n/4), "semver": "1.0.0-" + strings.Repeat("a.", n/2) + "b", "formats": strings.Repeat("%.99f", n/5), "texts": strings.Repeat("%s", n/2),
		"classes": strings.Repeat(`\pL`, 2_000), "spaces": strings.Repeat(" ", n),
		"ints": list(n, int64(1)), "doubles": list(n, 1e300), "bools": list(n, true), "words": list(root, strings.Repeat("x", root)), "letters": list(n, "x"), "lists": list(root, list(root, int64(1))),
		"map": keys, "nested": nested, "maps": maps,
	}}
}

var worstTexts = []string{"object.x", "object.half", "object.wide", "object.nines", "object.empty"}

// worstOf returns expressions for an argument of a type. Those of a list follow from the type of its elements.
func worstOf(t *testing.T, of *cel.Type) []string {
	t.Helper()
	switch of.Kind() {
	case types.StringKind:
		return worstTexts
	case types.IntKind:
		return []string{"0", "3", "1000000000"}
	case types.UintKind:
		return []string{"3u"}
	case types.DoubleKind:
		return []string{"1.5e300"}
	case types.BoolKind:
		return []string{"true"}
	case types.BytesKind:
		return []string{"bytes(object.x)"}
	case types.DurationKind:
		return []string{"duration('1h')"}
	case types.TimestampKind:
		return []string{"timestamp('2020-01-01T00:00:00Z')"}
	case types.DynKind, types.AnyKind, types.TypeParamKind:
		return []string{"object.x", "object.ints", "object.lists", "object.words", "object.map", "object.nested", "object.maps"}
	case types.MapKind:
		return []string{"object.map", "object.maps"}
	case types.ListKind:
		switch element := of.Parameters()[0]; element.Kind() {
		case types.StringKind:
			return []string{"object.words", "object.letters", "object.lists"}
		case types.IntKind:
			return []string{"object.ints"}
		case types.DoubleKind:
			return []string{"object.doubles"}
		case types.BoolKind:
			return []string{"object.bools"}
		case types.DynKind, types.TypeParamKind:
			return []string{"object.ints", "object.words", "object.lists", "[object.nested]", "[object.maps]", "object.doubles"}
		default:
			return []string{"object.ints.map(i, " + worstOf(t, element)[0] + ")"}
		}
	case types.OpaqueKind, types.StructKind:
		switch of.TypeName() {
		case "optional_type":
			return []string{"optional.of(" + worstOf(t, of.Parameters()[0])[0] + ")"}
		case "kubernetes.URL":
			return []string{"url(object.url)"}
		case "kubernetes.Quantity":
			return []string{"quantity('1')", "quantity('0.000000000999999999999999999999999')"}
		case "kubernetes.Semver":
			return []string{"semver(object.semver)"}
		case "net.IP":
			return []string{"ip('::1')"}
		case "net.CIDR":
			return []string{"cidr('::/0')"}
		case "kubernetes.NamedFormat":
			var all []string
			for _, name := range []string{"byte", "date", "datetime", "dns1035Label", "dns1123SubdomainPrefix", "labelValue", "qualifiedName", "uri", "uuid"} {
				all = append(all, "format."+name+"()")
			}
			return all
		}
	}
	t.Fatalf("no worst case for arguments of type %s (%v): add one", of, of.Kind())
	return nil
}

// worstFor are more expressions for an argument of some functions.
var worstFor = map[string]map[int][]string{
	"matches": {1: {`'(x*)*y'`, `'(x?){500}y'`, `'(x|y|z)*w'`, `object.classes`, `'x.*y|x'`}},
	"find":    {1: {`'(x*)*y'`, `'(x?){500}y'`, `object.classes`}},
	"findAll": {1: {`'(x*)*y'`, `'x.*y|x'`, `'x'`, `''`, `'\\bx'`}},
	"format":  {0: {"object.formats", "object.texts"}},
	"url":     {0: {"object.url"}}, "isURL": {0: {"object.url"}}, "semver": {0: {"object.semver"}}, "isSemver": {0: {"object.semver"}},
	"ip": {0: {"object.colons"}}, "isIP": {0: {"object.colons"}}, "trim": {0: {"object.spaces"}}, "getHours": {1: {"'Europe/Berlin'"}},
}

// written returns a call in the syntax of expressions; "" if that is not possible.
func written(name string, member bool, args []string) string {
	switch name {
	case operators.NotStrictlyFalse, "__not_strictly_false__", operators.OldIn, "in", loopFunction, rangeFunction, keyFunction:
		return ""
	case operators.In:
		return args[0] + " in " + args[1]
	case operators.Index:
		return args[0] + "[" + args[1] + "]"
	case operators.OptIndex:
		return args[0] + "[?" + args[1] + "]"
	case operators.OptSelect:
		return args[0] + ".?key"
	case operators.Conditional:
		return args[0] + " ? " + args[1] + " : " + args[2]
	}
	if symbol, is := operators.FindReverse(name); is && symbol != "" {
		if len(args) == 1 {
			return symbol + args[0]
		}
		return args[0] + " " + symbol + " " + args[1]
	}
	if member {
		return args[0] + "." + name + "(" + strings.Join(args[1:], ", ") + ")"
	}
	return name + "(" + strings.Join(args, ", ") + ")"
}

// worstCalls calls do for every overload of every function, with each combination of its worst arguments.
func worstCalls(t *testing.T, env *cel.Env, do func(overload, expression string)) {
	t.Helper()
	for name, f := range env.Functions() {
		for _, o := range f.OverloadDecls() {
			combinations := [][]string{nil}
			for i, of := range o.ArgTypes() {
				var longer [][]string
				for _, c := range combinations {
					each := append(worstOf(t, of), worstFor[name][i]...)
					if i > 1 {
						each = each[:min(2, len(each))]
					}
					for _, x := range each {
						longer = append(longer, append(c[:len(c):len(c)], x))
					}
				}
				combinations = longer
			}
			for _, c := range combinations {
				if x := written(name, o.IsMemberFunction(), c); x != "" {
					do(o.ID(), "["+x+"].size() == 1")
				}
			}
		}
	}
}

// reference returns the present time of the machine for a million units of simple work: reading the numbers of a
// list.
func reference(t *testing.T) time.Duration {
	t.Helper()
	list := make([]any, 1_000_000)
	for i := range list {
		list[i] = int64(i)
	}
	v := types.DefaultTypeAdapter.NativeToValue(list)
	return testcost.Time(t, func() { weigh(v, 2_000_000) })
}

// errTypes is the error of a call whose arguments have the wrong types.
var errTypes = errors.New("it does not compile")

// For any arguments, the call of a function ends soon. The limit is 100 ms, or the present time of this machine
// for as much simple work as an expression may do. A slower call gets further tries, because other processes
// use the machine too.
func TestEvaluator_WorstCallOfEachFunction(t *testing.T) {
	env, err := cel.NewEnv(options()...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newGuard(env); err != nil {
		t.Fatal(err)
	}
	patient := usual
	patient.time = time.Hour
	e := &Evaluator{limits: patient}
	o := worstObject(20_000)
	evaluate := func(x string) (time.Duration, error) {
		p := program{text: x}
		r := &run{Evaluator: e, object: o, left: patient.manifest}
		if r.compiled(p).err != nil {
			return 0, errTypes
		}
		var err error
		took := testcost.Time(t, func() { _, err = r.evaluate(t.Context(), p, map[string]any{"object": o.Object}) })
		return took, err
	}
	refused := map[string]bool{}
	worstCalls(t, env, func(overload, x string) {
		took, err := evaluate(x)
		var tooMuch *costError
		if errors.As(err, &tooMuch) {
			refused[overload] = true
		}
		for tries := 0; took > 100*time.Millisecond && took > 4*reference(t); tries++ {
			if tries == 5 {
				t.Errorf("%s: %s took %v, a million units of plain work take %v (%v)", overload, x, took, reference(t), err)
				return
			}
			took, err = evaluate(x)
		}
	})
	for _, overload := range []string{"string_index_of_string", "string_last_index_of_string_int", "string_replace_string_string", "string_find_all_string", "matches_string", "list_join_string"} {
		if !refused[overload] {
			t.Errorf("%s is not refused, whatever its arguments", overload)
		}
	}
}

// A function without a price is not allowed in rules.
func TestNewGuard_RefusesFunctionsWithoutAPrice(t *testing.T) {
	env, err := cel.NewEnv(append(options(), cel.Function("sluggish", cel.Overload("sluggish_string", []*cel.Type{cel.StringType}, cel.BoolType,
		cel.UnaryBinding(func(ref.Val) ref.Val { return types.True }))))...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newGuard(env); err == nil || err.Error() != "the function sluggish has no price" {
		t.Errorf("got %v", err)
	}
}
