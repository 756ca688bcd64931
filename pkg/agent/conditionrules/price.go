package conditionrules

import (
	"math"
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// price returns the units of a call with these arguments, besides the one unit of every call. Its own time must
// not exceed that price. It is not called if all arguments are simple values.
type price func(m *meter, args []ref.Val) float64

// prices has every function that rules may use. nil: the function takes a short, constant time, or is no call.
var prices = map[string]price{
	operators.LogicalAnd: nil, operators.LogicalOr: nil, operators.LogicalNot: nil, operators.Conditional: nil,
	operators.NotStrictlyFalse: nil, "__not_strictly_false__": nil, // its former name
	operators.Index: nil, operators.OptIndex: nil, operators.OptSelect: nil, // keys are paid separately
	operators.Negate: nil, operators.Subtract: nil, operators.Multiply: nil, operators.Divide: nil, operators.Modulo: nil,
	loopFunction: nil, rangeFunction: nil, keyFunction: nil,
	"type": nil, "dyn": nil, "hasConditions": nil, "first": nil, "last": nil,
	"or": nil, "orValue": nil, "hasValue": nil, "value": nil, "optional.of": nil, "optional.none": nil, "optional.ofNonZeroValue": nil,
	"asApproximateFloat": nil, "asInteger": nil, "isInteger": nil, "sign": nil,
	"family": nil, "masked": nil, "prefixLength": nil, "isGlobalUnicast": nil, "isLinkLocalMulticast": nil, "isLinkLocalUnicast": nil, "isLoopback": nil, "isUnspecified": nil,
	"major": nil, "minor": nil, "patch": nil,
	"format.byte": nil, "format.date": nil, "format.datetime": nil, "format.dns1035Label": nil, "format.dns1035LabelPrefix": nil, "format.dns1123Label": nil,
	"format.dns1123LabelPrefix": nil, "format.dns1123Subdomain": nil, "format.dns1123SubdomainPrefix": nil, "format.labelValue": nil, "format.qualifiedName": nil,
	"format.uri": nil, "format.uuid": nil,

	operators.Equals: equality, operators.NotEquals: equality,
	operators.Less: order, operators.LessEquals: order, operators.Greater: order, operators.GreaterEquals: order,
	operators.Add: concatenation, operators.In: membership, operators.OldIn: membership, "in": membership,
	"contains": func(_ *meter, args []ref.Val) float64 { return search(chars(args[0]), chars(args[1])) },
	"indexOf":  position, "lastIndexOf": position,
	"startsWith": last(0.1), "endsWith": last(0.1),
	"matches": matching, "find": matching, "findAll": matching,
	"replace": replacement, "split": splitting, "join": joining, "format": formatting,
	"isSorted": all(1), "sum": all(1), "min": all(1), "max": all(1),
	"optional.unwrap": elements, "unwrapOpt": elements,

	"size":   text1(0.02),
	"charAt": text1(0.2), "substring": text1(0.2), "lowerAscii": text1(0.2), "upperAscii": text1(0.2), "trim": text1(0.2), "reverse": text1(0.2), "strings.quote": text1(0.4),
	"bool": text1(0.2), "bytes": text1(0.2), "double": text1(0.2), "duration": text1(1), "int": text1(0.2), "string": text1(0.2), "timestamp": text1(0.5), "uint": text1(0.2),
	"ip": text1(0.5), "ip.isCanonical": text1(1), "isIP": text1(0.5), "cidr": text1(0.5), "isCIDR": text1(0.5), "containsIP": all(5), "containsCIDR": all(5),
	"url": text1(1), "isURL": text1(1), "semver": text1(2), "isSemver": text1(2), "format.named": text1(0.2), "validate": last(4),
	"quantity": number, "isQuantity": number,
	"add": all(1), "sub": all(1), "compareTo": all(1), "isGreaterThan": all(1), "isLessThan": all(1),
	"getScheme": all(1), "getHost": all(1), "getHostname": all(1), "getPort": all(1), "getEscapedPath": all(5), "getQuery": all(10),

	"getDate": zone, "getDayOfMonth": zone, "getDayOfWeek": zone, "getDayOfYear": zone, "getFullYear": zone, "getHours": zone, "getMilliseconds": zone,
	"getMinutes": zone, "getMonth": zone, "getSeconds": zone,
}

// simple reports whether all arguments are of constant size.
func simple(args []ref.Val) bool {
	for _, a := range args {
		switch a.(type) {
		case types.Bool, types.Int, types.Uint, types.Double, types.Null, types.Duration, types.Timestamp:
		default:
			return false
		}
	}
	return true
}

func readable(name string) string {
	if symbol, ok := operators.FindReverse(name); ok && symbol != "" {
		return symbol
	}
	return name
}

// chars returns the length of a text in bytes, 0 for other values.
func chars(v ref.Val) float64 {
	switch v := v.(type) {
	case types.String:
		return float64(len(v))
	case types.Bytes:
		return float64(len(v))
	}
	return 0
}

// size returns the number of direct elements of a list or map.
func size(v traits.Sizer) float64 {
	n, _ := v.Size().(types.Int)
	return float64(n)
}

// text1 returns the price of functions of one text, for each units per character.
func text1(each float64) price {
	return func(_ *meter, args []ref.Val) float64 { return each * chars(args[0]) }
}

// last returns the price of functions whose last argument is the relevant text.
func last(each float64) price {
	return func(_ *meter, args []ref.Val) float64 { return each * chars(args[len(args)-1]) }
}

// all returns the price of functions that read all values once, at any depth.
func all(times float64) price {
	return func(m *meter, args []ref.Val) float64 {
		total := 0.0
		for _, a := range args {
			w, _ := weigh(a, m.left)
			total += w * times
		}
		return total
	}
}

// equality ends at the latest with the smaller value. Its size is found by reading both alternately.
func equality(m *meter, args []ref.Val) float64 {
	for limit := 64.0; ; limit *= 4 {
		for _, a := range args {
			if w, _ := weigh(a, limit); w <= limit {
				return w
			}
		}
		if limit > m.left {
			return limit
		}
	}
}

func order(_ *meter, args []ref.Val) float64 { return min(chars(args[0]), chars(args[1])) / 10 }

// concatenation copies both values, except the list that a loop is filling: that only grows.
func concatenation(_ *meter, args []ref.Val) float64 {
	_, filling := args[0].(traits.MutableLister)
	units := 0.0
	for i, a := range args {
		switch a := a.(type) {
		case types.String, types.Bytes:
			units += chars(a) / 10
		case traits.Lister:
			if i > 0 || !filling {
				units += size(a)
			}
		}
	}
	return units
}

func membership(m *meter, args []ref.Val) float64 {
	switch in := args[1].(type) {
	case traits.Mapper:
		return chars(args[0]) / 10
	case traits.Lister:
		return among(m, in, args[0])
	}
	return 0
}

// among returns the price of comparing a value with each element of a list.
func among(m *meter, list traits.Lister, v ref.Val) float64 {
	n := size(list)
	if simple([]ref.Val{v}) {
		return n
	}
	w, _ := weigh(v, m.left)
	units := n * (1 + w)
	if units > 100 {
		most, _ := weigh(list, units) // at most the size of the list
		units = min(units, n+most)
	}
	return units
}

// search returns the price of finding one text in another with the standard library. It reads the text once.
// Each time the hashes are equal by chance, it also compares the whole other text.
func search(text, other float64) float64 {
	return text/10 + max(0, text-other+1)*other/1000
}

func position(m *meter, args []ref.Val) float64 {
	if list, ok := args[0].(traits.Lister); ok {
		return among(m, list, args[1])
	}
	text, _ := args[0].(types.String)
	other, _ := args[1].(types.String)
	m.pay("a text is too long", chars(text)/5+chars(other)/5)
	n, k := float64(utf8.RuneCountInString(string(text))), float64(utf8.RuneCountInString(string(other)))
	return max(0, n-k+1) * k / 10 // each position, each character
}

func replacement(m *meter, args []ref.Val) float64 {
	text, _ := args[0].(types.String)
	other, _ := args[1].(types.String)
	m.pay("replace has too large an input", 2*search(chars(text), chars(other)))
	return float64(strings.Count(string(text), string(other))) * (1 + chars(args[2])/10)
}

func splitting(m *meter, args []ref.Val) float64 {
	text, _ := args[0].(types.String)
	by, _ := args[1].(types.String)
	m.pay("split has too large an input", 2*search(chars(text), chars(by)))
	return float64(strings.Count(string(text), string(by)))
}

func joining(m *meter, args []ref.Val) float64 {
	units, _ := weigh(args[0], m.left)
	if list, ok := args[0].(traits.Lister); ok && len(args) > 1 {
		units += size(list) * chars(args[1]) / 10
	}
	return units
}

// longestNumber is the price of a formatted number: 300 digits, and 100 after the point.
const longestNumber = 40

// formatting copies the values of a map once for each enclosing map.
func formatting(m *meter, args []ref.Val) float64 {
	text, _ := args[0].(types.String)
	units, depth := weigh(args[1], m.left)
	return float64(len(text)) + float64(strings.Count(string(text), "%"))*longestNumber + units*float64(10+depth/10)
}

func elements(_ *meter, args []ref.Val) float64 {
	if list, ok := args[0].(traits.Lister); ok {
		return size(list)
	}
	return 0
}

// number reads digits; the time grows with the square of their number.
func number(_ *meter, args []ref.Val) float64 {
	n := chars(args[0])
	return n + n*n/1000
}

// zone is the price of parts of a time: a time zone name reads a file.
func zone(_ *meter, args []ref.Val) float64 {
	if len(args) < 2 {
		return 0
	}
	return 2000 + chars(args[1])
}

// weigh returns the size and depth of a value, until the size exceeds limit: one unit per value, and one per
// ten characters.
func weigh(v ref.Val, limit float64) (units float64, depth int) {
	w := weigher{limit: limit}
	w.add(v, 1)
	return w.units, w.depth
}

type weigher struct {
	limit, units float64
	depth        int
}

func (w *weigher) add(v ref.Val, depth int) {
	w.units++
	w.depth = max(w.depth, depth)
	switch v := v.(type) {
	case types.Bool, types.Int, types.Uint, types.Double, types.Null, types.Duration, types.Timestamp:
	case types.String:
		w.units += float64(len(v)) / 10
	case types.Bytes:
		w.units += float64(len(v)) / 10
	case *types.Optional:
		if v.HasValue() {
			w.add(v.GetValue(), depth+1)
		}
	case traits.Mapper:
		w.pairs(v, depth+1)
	case traits.Lister:
		if !w.remaining(v) {
			return
		}
		for it := v.Iterator(); w.units <= w.limit && it.HasNext() == types.True; {
			w.add(it.Next(), depth+1)
		}
	default:
		w.units += opaque(v)
	}
}

func (w *weigher) pairs(v traits.Mapper, depth int) {
	if !w.remaining(v) {
		return
	}
	for it := v.Iterator(); w.units <= w.limit && it.HasNext() == types.True; {
		key := it.Next()
		w.add(key, depth)
		if e, found := v.Find(key); found {
			w.add(e, depth)
		}
	}
}

// remaining reports whether a list or map may fit. If not, it is not read, because that alone can copy all
// keys.
func (w *weigher) remaining(v traits.Sizer) bool {
	if w.units+size(v) <= w.limit {
		return true
	}
	w.units = math.Inf(1)
	return false
}

// opaque returns the size of a value that only its own functions can read.
func opaque(v ref.Val) float64 {
	chars := 0
	switch v := v.(type) {
	case apiservercel.URL:
		chars = len(v.Scheme) + len(v.Host) + len(v.Path) + len(v.RawPath) + len(v.RawQuery) + len(v.Fragment)
	case apiservercel.Semver:
		for _, p := range v.Pre {
			chars += 10 + len(p.VersionStr)
		}
		for _, b := range v.Build {
			chars += 10 + len(b)
		}
	}
	return float64(chars) / 10
}
