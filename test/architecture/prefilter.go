package architecture

import (
	"regexp/syntax"
	"slices"
	"strings"
)

// requiredParts returns strings in lower case of which each match of a pattern contains one. The
// phrases are many and Go's regular expressions slow, so texts without a part are skipped. A
// pattern without such parts has the empty string, which each text contains.
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

// partsOf returns nil where a match may lack any part.
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

// shortest returns the length of the shortest part, 0 for none.
func shortest(parts []string) int {
	if len(parts) == 0 {
		return 0
	}
	return len(slices.MinFunc(parts, func(a, b string) int { return len(a) - len(b) }))
}
