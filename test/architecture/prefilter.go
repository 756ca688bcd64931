package architecture

import (
	"regexp/syntax"
	"slices"
	"strings"
)

// requiredParts returns strings in lower case. Each match of a pattern contains one of them. Go's regular
// expressions are slow, and the phrases are many, so texts without a part are skipped. A pattern without
// required parts returns the empty string, which each text contains.
func requiredParts(pattern string) []string {
	re, err := syntax.Parse(pattern, syntax.Perl|syntax.FoldCase)
	if err != nil {
		return []string{""}
	}
	if parts := partsOf(re); len(parts) > 0 {
		return parts
	}
	return []string{""}
}

// partsOf returns nil if a match may lack all parts.
func partsOf(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpLiteral:
		return []string{strings.ToLower(string(re.Rune))}
	case syntax.OpCapture, syntax.OpPlus:
		return partsOf(re.Sub[0])
	case syntax.OpConcat:
		var best []string
		for _, sub := range re.Sub {
			if parts := partsOf(sub); shortest(parts) > shortest(best) {
				best = parts
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			parts := partsOf(sub)
			if parts == nil {
				return nil
			}
			all = append(all, parts...)
		}
		return all
	default:
		return nil
	}
}

// shortest returns the length of the shortest part, 0 without parts.
func shortest(parts []string) int {
	if len(parts) == 0 {
		return 0
	}
	return len(slices.MinFunc(parts, func(a, b string) int { return len(a) - len(b) }))
}
