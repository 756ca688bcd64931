package kubeclient

import "strings"

// Matches reports whether pattern matches a whole name or namespace. "*" matches any characters, including
// none.
func Matches(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, p := range parts[1 : len(parts)-1] {
		_, rest, found := strings.Cut(s, p)
		if !found {
			return false
		}
		s = rest
	}
	return true
}
